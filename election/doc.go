// Package election elects one leader among the processes that want to do the same work, over a Redis lease.
//
//	e, err := election.New(election.Config{
//		Manager:   manager, // *redlock.Manager
//		Namespace: "payments",
//		Name:      "settlement",
//		Callbacks: leaderelection.LeaderCallbacks{
//			OnStartedLeading: func(ctx context.Context) {
//				epoch, _ := election.EpochFrom(ctx)
//				settle(ctx, epoch) // returns when ctx ends
//			},
//			OnStoppedLeading: func() {},
//		},
//		ReleaseOnCancel: true,
//	})
//	...
//	err = e.Run(ctx)
//
// The vocabulary is client-go's (LeaseDuration, RenewDeadline, RetryPeriod, the callbacks), and so is the record
// that the lease carries: candidates of the resourcelock package compete for the same lease. What happens is not
// quite the same.
//
// # A term
//
// A term begins when the lease was acquired. OnStartedLeading is called in a goroutine of its own; EpochFrom tells
// the epoch of the term, a number greater than that of every term before. If it returns while the term
// lasts, the term goes on.
//
// The lease is renewed every RetryPeriod. It is lost when Redis no longer has it, when it could not be renewed until
// RenewDeadline, or when its validity is over, which is before the key can expire in Redis. Then the context of
// the work is cancelled with the cause ErrLost, and OnStoppedLeading is called at once, whether the work has
// returned or not: others may lead from now on. This process takes part again when the work has returned.
//
// When Run's context ends (ErrStopping) or StepDown is called (ErrSteppedDown), the context of the work is cancelled
// and the lease is renewed until the work has returned, however long that takes: nobody else leads meanwhile. Then
// OnStoppedLeading is called and the lease is released, and the next leader begins within milliseconds. If
// the lease is lost while the leader waits for its work, it is lost as above.
//
// # The callbacks
//
// OnStoppedLeading is called once for every term that began, never otherwise (client-go calls it also without a
// term). Release and next term wait for it: it should be quick. In it, IsLeader is false already.
//
// OnNewLeader is told every identity that is seen to lead and is not the one before, in order, our own as well. Nothing
// waits for it. While it is busy up to 64 names wait, then the oldest is left out. Run waits one
// RetryPeriod for it in the end: a callback that blocks for ever keeps its goroutine, and nothing else.
//
// A panic in a callback is logged and ends the process, as in client-go.
//
// # Waiting
//
// Who does not lead does not poll: it is woken by the release, or looks when the TTL it has seen is over, which a
// leader that lives has prolonged by then. That is one read per candidate and LeaseDuration. Where releases cannot
// be heard (an ACL, a proxy without subscriptions) it looks every RetryPeriod. A lease that an administrator deleted is
// noticed by its leader within RetryPeriod, by others at the end of the TTL that they have seen.
//
// # Many elections
//
// One process can take part in thousands of elections, say one for each shard, over one Manager. They share one
// subscription connection per node and the clients' pools. A candidate that waits costs one goroutine, Run's; one
// that leads costs two more, for the renewals and for OnStartedLeading. Renewals are spread over time.
// Managers bound how many commands are under way to a node at once; a pool of a few dozen connections
// serves them all.
//
// # Metrics
//
// With Config.Registerer, and while Run runs; the label name is namespace/name:
//
//	redlock_leader_election_master_status             gauge: 1 while this candidate leads
//	redlock_leader_election_epoch                     gauge: epoch of its term
//	redlock_leader_election_validity_seconds          gauge: how long its lease is good for
//	redlock_leader_election_transitions_total         counter: changes of leader that it has seen
//	redlock_leader_election_renewal_duration_seconds  histogram
//	redlock_leader_election_losses_total              counter, by reason:
//	    expired      the process, or its machine, stood still past the validity of its lease
//	    unreachable  Redis did not confirm a renewal until RenewDeadline
//	    gone         the lease was deleted, or Redis has lost its data
//
// Nobody leads, and a leader that is about to lose its lease:
//
//   - alert: NoLeader
//     expr: sum by (name) (redlock_leader_election_master_status) == 0
//     for: 1m
//   - alert: LeaseNotRenewed
//     expr: redlock_leader_election_master_status == 1 and redlock_leader_election_validity_seconds < 5
//
// # What is not guaranteed
//
// IsLeader and the context of the work tell the truth at the moment one looks. A process that is paused after it has
// looked may write when another leads already. Only what is written to can refuse that, by comparing epochs;
// see the package redlock. With a Redlock Manager there are epochs only with Config.QuorumFencing: else they are 0.
package election
