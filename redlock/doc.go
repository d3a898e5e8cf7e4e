// Package redlock implements distributed leases on Redis: on one Redis authority, or on a majority
// of independent ones (Redlock).
//
// A lease is a key with a random token as its value and a TTL. Whoever sets the key, which succeeds only if
// it is free, holds the lease until it releases it, or until the TTL ends because it could not renew it:
//
//	manager, err := redlock.NewSingle(rdb, redlock.Config{Expiry: 10 * time.Second})
//	...
//	lock := manager.NewLock("orders:{42}:lock",
//		redlock.WithAutoRenew(3*time.Second),
//		redlock.WithFencingToken("orders:{42}:fence"))
//	if err := lock.TryLock(ctx); err != nil {
//		return err // errors.Is(err, redlock.ErrNotAcquired): somebody else has it
//	}
//	defer lock.Unlock(context.Background())
//	return work(ctx, lock.FencingToken())
//
// # The life of a lease
//
// Acquire: [Lock.TryLock] sends SET key token NX PX ttl to every node at once. The lease is held if a majority
// grants it and TTL - elapsed - drift is positive; [Lock.ValidUntil] is the end of that. Otherwise what was sent
// is undone on every node, also on one that did not answer, where the command may arrive later. [Lock.Lock]
// waits for its turn without polling, woken by the release.
//
// Hold: [Lock.Extend] and [WithAutoRenew] prolong the lease where the token is still the same. A renewal that
// too few nodes answer is inconclusive; automatic renewal tries again until the lease's validity ends.
//
// Lose: [Lock.Lost] is closed, [Lock.Context] is cancelled and [Lock.Held] is false when a majority no longer
// has the lease, and in any case no later than the end of its validity, which comes before the first key can
// expire in Redis: the holder is told before anybody else can acquire.
//
// Release: [Lock.Unlock] deletes the key where the token is still the same, and wakes those who wait.
//
// # Which mode
//
// [NewSingle] is for everybody who shares one logical Redis; fencing tokens come from an atomic counter there
// ([WithFencingToken]). [NewRedlock] needs an odd number, three at least, of Redis primaries that fail
// independently, and tolerates the failure of a minority; fencing tokens are agreed by a majority, in a second
// round of commands ([WithQuorumFencing]). In both, a bare lock is stored as other Redlock clients
// store it, and excludes them.
//
// # What is not guaranteed
//
// A lease is an agreement about time. A process that was paused between looking at its lease and writing
// may write after somebody else has acquired it: nothing that happens inside Redis can stop it. The protected
// resource can, by remembering the highest fencing token and refusing lower ones in the same atomic step:
//
//	UPDATE orders SET state = $1, last_fence = $2 WHERE id = $3 AND last_fence <= $2
//
// Without such a check, mutual exclusion holds as long as no pause between look and write exceeds what is left
// of the validity, clocks run within the DriftFactor of each other, and the nodes keep what they have acknowledged.
// A node that restarts without its data, or fails over to a replica that lacks the last writes, may grant a
// lease twice; counters lost that way may issue old tokens again, unless [WithFenceFloor] knows better.
// Config.RestartGuard has a node that was restarted wait with its vote until what it may have forgotten is over;
// [Manager.Verify] finds nodes that are not set up to keep what they acknowledge, or are not independent.
package redlock
