package resourcelock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// newManager connects to a Redis for the examples.
func newManager() (*redlock.Manager, func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	m, err := redlock.NewSingle(rdb)
	if err != nil {
		log.Fatal(err)
	}
	return m, func() { _ = m.Close(); _ = rdb.Close(); server.Close() }
}

// With client-go: the lock goes into LeaderElectionConfig, and Lock.Context is the context for Run.
func Example_clientGo() {
	m, closeAll := newManager()
	defer closeAll()
	lock, err := resourcelock.New(resourcelock.Config{
		Manager: m, Namespace: "default", Name: "my-controller", Identity: "pod-1",
		FastHandover: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	stop, cancel := context.WithCancel(context.Background())
	worked := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				defer close(worked)
				fmt.Println("leading under epoch", lock.Epoch())
				cancel() // the work is done; it must be, before the context is cancelled
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	ctx, release := lock.Context(stop) // cancelled when the lease is lost, too
	defer release()
	elector.Run(ctx)
	<-worked
	fmt.Println("released, epoch", lock.Epoch())
	// Output:
	// leading under epoch 1
	// released, epoch 0
}

// With controller-runtime: the lock goes into the manager's options, and mgr.Add(lock) stops the manager at a loss.
// This manager has no API server: without a MapperProvider of its own it would ask one for its resources.
func Example_controllerRuntime() {
	m, closeAll := newManager()
	defer closeAll()
	lock, err := resourcelock.New(resourcelock.Config{
		Manager: m, Namespace: "default", Name: "my-controller", FastHandover: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "http://nowhere.invalid"}, ctrl.Options{
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		Metrics:                             metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return meta.NewDefaultRESTMapper(nil), nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	for _, r := range []manager.Runnable{
		lock,
		manager.RunnableFunc(func(ctx context.Context) error { // runs on the leader only
			fmt.Println("leading under epoch", lock.Epoch())
			stop()
			<-ctx.Done()
			return nil
		}),
	} {
		if err := mgr.Add(r); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("stopped:", mgr.Start(ctx))
	// Output:
	// leading under epoch 1
	// stopped: <nil>
}
