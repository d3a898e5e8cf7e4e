// Package resourcelock offers a Redis lease as client-go's resourcelock.Interface: an unmodified
// leaderelection.LeaderElector, and an unmodified controller-runtime manager, elect through it.
//
//	lock, err := resourcelock.New(resourcelock.Config{Manager: manager, Namespace: "default", Name: "my-controller"})
//
// For client-go the lock goes into LeaderElectionConfig.Lock, and [Lock.Context] is the context for Run; for
// controller-runtime it goes into manager.Options.LeaderElectionResourceLockInterface, and mgr.Add(lock) has the manager
// stop the moment the lease is lost. Both cut a leader's work at the end of the lease's validity, before anybody
// else can lead; client-go by itself goes on until RenewDeadline.
//
// # Terms and epochs
//
// A term is one acquisition of the lease. On a single Redis it has an epoch, greater than that of any term before;
// LeaderTransitions is the epoch less one. A lost term is over: until the elector has said that it
// stopped leading, the lock refuses to acquire again, so that a leader never slips from one term into
// the next without its callbacks. With a Redlock manager and without
// Config.QuorumFencing the epoch is 0, and LeaderTransitions what client-go counts.
//
// # What differs from a Lease
//
// Nobody takes a lease over while its key lives in Redis: expiry is the server's, not each candidate's own idea of
// it. Times in the record are for display. A free lease that was held before is reported as a record without
// a holder, so that LeaderTransitions counts on. A lease is a candidate's own only if it has acquired it itself: what
// an earlier process with the same identity has left is shown as another process's. With ReleaseOnCancel
// false a second Run waits, therefore, until the TTL of the first is over.
//
// # What is not guaranteed
//
// client-go by itself goes on leading until its RenewDeadline when it knows already that the lease is lost, and
// releases before it tells the work to stop: use Context or mgr.Add. And a process that was paused between looking at
// its lease and writing may write after another has begun to lead: only the protected resource can
// refuse that, by the epoch.
package resourcelock
