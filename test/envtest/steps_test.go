//go:build envtest

package envtest

import (
	"time"

	"k8s.io/client-go/rest"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// The steps of docs/migrate-from-lease.md, word for word: TestGuideShowsWhatIsTested compares.

func leaseOnly(cfg *rest.Config, opts ctrl.Options, namespace, name string) (manager.Manager, error) {
	opts.LeaderElection = true
	opts.LeaderElectionNamespace, opts.LeaderElectionID = namespace, name
	opts.LeaderElectionReleaseOnCancel = true
	return ctrl.NewManager(cfg, opts)
}

func leaseAndRedis(cfg *rest.Config, opts ctrl.Options, redis *redlock.Manager, namespace, name string) (manager.Manager, *resourcelock.Lock, error) {
	lock, err := resourcelock.New(resourcelock.Config{Manager: redis, Namespace: namespace, Name: name, QuorumFencing: true})
	if err != nil {
		return nil, nil, err
	}
	renewDeadline := 10 * time.Second // controller-runtime's default
	if opts.RenewDeadline != nil {
		renewDeadline = *opts.RenewDeadline
	}
	lease, err := rl.NewFromKubeconfig(rl.LeasesResourceLock, namespace, name,
		rl.ResourceLockConfig{Identity: lock.Identity()}, cfg, renewDeadline) // the identity must be the same
	if err != nil {
		return nil, nil, err
	}
	opts.LeaderElection = true
	opts.LeaderElectionReleaseOnCancel = true
	//lint:ignore SA1019 deprecated only because the locks that it was once made for are gone
	opts.LeaderElectionResourceLockInterface = &rl.MultiLock{Primary: lease, Secondary: lock} // in this order
	mgr, err := ctrl.NewManager(cfg, opts)
	if err != nil {
		return nil, nil, err
	}
	return mgr, lock, mgr.Add(lock) // stops the manager when the lease in Redis is lost
}

func redisOnly(cfg *rest.Config, opts ctrl.Options, redis *redlock.Manager, namespace, name string) (manager.Manager, *resourcelock.Lock, error) {
	lock, err := resourcelock.New(resourcelock.Config{
		Manager: redis, Namespace: namespace, Name: name, QuorumFencing: true, FastHandover: true,
	})
	if err != nil {
		return nil, nil, err
	}
	opts.LeaderElection = true
	opts.LeaderElectionReleaseOnCancel = true
	opts.LeaderElectionResourceLockInterface = lock
	mgr, err := ctrl.NewManager(cfg, opts)
	if err != nil {
		return nil, nil, err
	}
	return mgr, lock, mgr.Add(lock)
}
