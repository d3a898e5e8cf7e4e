package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// runReplica is one replica: a manager whose leader election is a Redis lease.
func runReplica(ctx context.Context, o options) error {
	log := logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil))
	ctrl.SetLogger(log)

	clients := connect(o.addrs())
	defer closeAll(clients)
	leases, err := newManager(clients)
	if err != nil {
		return err
	}
	defer leases.Close()

	lock, err := resourcelock.New(resourcelock.Config{
		Manager:       leases,
		Namespace:     o.namespace,
		Name:          o.name,
		Identity:      o.identity,
		LeaseDuration: o.leaseDuration,
		Logger:        log,
		FastHandover:  true,
	})
	if err != nil {
		return err
	}
	mgr, err := o.newCtrlManager(lock)
	if err != nil {
		return err
	}
	if err := mgr.Add(lock); err != nil { // stops the manager the moment the lease is lost
		return err
	}
	job := &job{lock: lock, store: newStore(clients[0], o.namespace, o.name), say: newReporter(os.Stdout, lock.Identity())}
	if err := mgr.Add(job); err != nil {
		return err
	}
	return mgr.Start(endWithParent(ctx))
}

func (o options) newCtrlManager(lock *resourcelock.Lock) (ctrl.Manager, error) {
	opts := ctrl.Options{
		LeaderElection:                      true,
		LeaderElectionReleaseOnCancel:       true,
		LeaderElectionResourceLockInterface: lock,
		LeaseDuration:                       &o.leaseDuration,
		RenewDeadline:                       &o.renewDeadline,
		RetryPeriod:                         &o.retryPeriod,
		Metrics:                             metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:              o.probes,
	}
	cluster, err := o.cluster()
	if err != nil {
		return nil, err
	}
	withCluster := cluster != nil
	if !withCluster {
		// Nothing here asks an API server: the manager runs its Runnables without one.
		cluster = &rest.Config{Host: "http://127.0.0.1:1"}
		opts.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return meta.NewDefaultRESTMapper(nil), nil
		}
	}
	mgr, err := ctrl.NewManager(cluster, opts)
	if err != nil {
		return nil, err
	}
	if withCluster {
		if err := addReconciler(mgr, lock); err != nil {
			return nil, err
		}
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
}

// cluster returns where the ConfigMaps are, nil without a cluster.
func (o options) cluster() (*rest.Config, error) {
	switch {
	case o.inCluster:
		return rest.InClusterConfig()
	case o.kubeconfig != "":
		return clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	default:
		return nil, nil
	}
}

func connect(addrs []string) []*redis.Client {
	var clients []*redis.Client
	for _, a := range addrs {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: a, Password: os.Getenv("REDIS_PASSWORD")}))
	}
	return clients
}

func closeAll(clients []*redis.Client) {
	for _, c := range clients {
		_ = c.Close()
	}
}

func newManager(clients []*redis.Client) (*redlock.Manager, error) {
	nodes := make([]redlock.Node, len(clients))
	for i, c := range clients {
		nodes[i] = c
	}
	return redlock.New(nodes...)
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

// job is the singleton work of the leader: every now and then it writes to a store that refuses writes of
// earlier terms.
type job struct {
	lock  *resourcelock.Lock
	store *store
	say   *reporter
}

// NeedLeaderElection tells the manager to run the job on the leader only.
func (j *job) NeedLeaderElection() bool { return true }

// Start works until ctx ends.
func (j *job) Start(ctx context.Context) error {
	epoch := j.lock.Epoch()
	j.say.report("leading", epoch, "")
	defer j.say.report("stopped", epoch, "")
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for n := 1; ; n++ {
		if epoch != 0 { // a Redlock lease has no epoch to write under
			if err := j.store.write(ctx, epoch, fmt.Sprintf("run %d", n)); err != nil && ctx.Err() == nil {
				return fmt.Errorf("writing under epoch %d: %w", epoch, err)
			}
		}
		j.say.report("worked", epoch, fmt.Sprintf("run %d", n))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// event is what a replica reports, as a line of JSON on its standard output.
type event struct {
	At      time.Time `json:"at"`
	Replica string    `json:"replica"`
	Event   string    `json:"event"` // "leading", "worked" or "stopped"; from the demo itself: "exited"
	Epoch   uint64    `json:"epoch,omitempty"`
	Detail  string    `json:"detail,omitempty"`
}

// reporter writes events.
type reporter struct {
	replica string
	out     *json.Encoder
}

func newReporter(w io.Writer, replica string) *reporter {
	return &reporter{replica, json.NewEncoder(w)}
}

func (r *reporter) report(what string, epoch uint64, detail string) {
	_ = r.out.Encode(event{time.Now(), r.replica, what, epoch, detail})
}
