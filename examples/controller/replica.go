package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ndyakov/go-redlock/resourcelock"
)

// runReplica is one replica: a manager whose leader election is a Redis lease.
func runReplica(ctx context.Context, o options) error {
	redis, err := connect(o)
	if err != nil {
		return err
	}
	defer redis.close()
	cluster, err := o.cluster()
	if err != nil {
		return err
	}
	store := redis.store(o)
	floor, err := newFloor(o, store, cluster)
	if err != nil {
		return err
	}
	lock, err := resourcelock.New(resourcelock.Config{
		Manager:       redis.leases,
		Namespace:     o.namespace,
		Name:          o.name,
		Identity:      o.identity,
		LeaseDuration: o.leaseDuration,
		Logger:        ctrl.Log,
		QuorumFencing: true, // epochs on Redlock as well
		FenceFloor:    floor,
		FastHandover:  true,
	})
	if err != nil {
		return err
	}
	mgr, err := o.newManager(lock, cluster)
	if err != nil {
		return err
	}
	say := newReporter(os.Stdout, lock.Identity())
	for _, r := range []manager.Runnable{
		lock, // stops the manager the moment the lease is lost
		herald{say},
		&job{lock, store, say, ctrl.Log},
	} {
		if err := mgr.Add(r); err != nil {
			return err
		}
	}
	if err := addProbes(mgr, redis, o); err != nil {
		return err
	}
	if cluster != nil {
		if err := addReconciler(mgr, lock); err != nil {
			return err
		}
	}
	ctx = endWithParent(ctx)
	boundShutdown(ctx, lock, o.shutdown)
	return mgr.Start(ctx)
}

// newManager returns a manager that elects through lock. Without a cluster it runs its Runnables, and asks no
// API server for anything.
func (o options) newManager(lock *resourcelock.Lock, cluster *rest.Config) (ctrl.Manager, error) {
	// controller-runtime renews the lease until all Runnables have ended, and releases it then; but also when its
	// own timeout ends, with work still going on. So it gets none: see boundShutdown.
	forever := time.Duration(-1)
	opts := ctrl.Options{
		LeaderElection:                      true,
		LeaderElectionReleaseOnCancel:       true,
		LeaderElectionResourceLockInterface: lock,
		LeaseDuration:                       &o.leaseDuration,
		RenewDeadline:                       &o.renewDeadline,
		RetryPeriod:                         &o.retryPeriod,
		GracefulShutdownTimeout:             &forever,
		Metrics:                             metricsserver.Options{BindAddress: o.metrics},
		HealthProbeBindAddress:              o.probes,
	}
	if cluster != nil {
		opts.Cache = o.cacheOptions()
	} else {
		cluster = &rest.Config{Host: "http://nowhere.invalid"}
		opts.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return meta.NewDefaultRESTMapper(nil), nil
		}
	}
	return ctrl.NewManager(cluster, opts)
}

// boundShutdown ends the process when its work does not end in time after a signal or a loss of the lease. The lease
// is not released: nobody may lead while this one might still be at work, and so it has to run out.
func boundShutdown(ctx context.Context, lock *resourcelock.Lock, timeout time.Duration) {
	stopping, _ := lock.Context(ctx)
	context.AfterFunc(stopping, func() {
		time.Sleep(timeout)
		fmt.Fprintf(os.Stderr, "controller: the work has not ended within %v\n", timeout)
		os.Exit(1)
	})
}

// addProbes adds /healthz, which says that the process answers, and /readyz, which says that it could lead.
func addProbes(mgr ctrl.Manager, redis *servers, o options) error {
	ready := func(r *http.Request) error {
		_, _, err := redis.leases.Holder(r.Context(), o.key("lease"))
		return err
	}
	return errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("redis", ready))
}

// newFloor returns the highest epoch that what has seen epochs remembers: the next one must exceed it.
func newFloor(o options, store *store, cluster *rest.Config) (func(context.Context) (uint64, error), error) {
	var floors []func(context.Context) (uint64, error)
	if store != nil {
		floors = append(floors, store.floor)
	}
	if cluster != nil {
		stamps, err := newStamps(cluster, o.watch)
		if err != nil {
			return nil, err
		}
		floors = append(floors, stamps.floor)
	}
	return func(ctx context.Context) (highest uint64, err error) {
		for _, floor := range floors {
			epoch, err := floor(ctx)
			if err != nil {
				return 0, err
			}
			highest = max(highest, epoch)
		}
		return highest, nil
	}, nil
}

// endWithParent returns a context that also ends when standard input does: a replica of the demo must not outlive it.
func endWithParent(ctx context.Context) context.Context {
	if os.Getenv(fromDemo) == "" {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return ctx
}

// fromDemo is set in the environment of the demo's replicas.
const fromDemo = "EXAMPLE_CONTROLLER_DEMO"
