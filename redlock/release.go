package redlock

import "context"

// Unlock releases the lease on every node, for which it compares the token: another holder's lease is
// never touched. It takes OperationTimeout at most, also when ctx has ended: a release that was begun is
// finished. From its start the handle holds nothing, whatever the outcome.
//
// It returns nil when a majority released it and every node answered; a *QuorumError that is not ErrLockLost
// when a majority did, but some node failed, which is then released in the background or expires;
// ErrLockLost when the lease was lost before, or when no majority confirmed that it was still there;
// ErrNotHeld when there is none.
func (l *Lock) Unlock(ctx context.Context) error {
	if l.invalid != nil {
		return l.invalid
	}
	if l.m.ctx.Err() != nil {
		return failed("release", l.key, ErrClosed)
	}
	t, s := l.take()
	if s == idle || s == released {
		return failed("release", l.key, ErrNotHeld)
	}

	v := l.m.newVotes()
	ctx = context.WithoutCancel(ctx)
	_ = l.m.undo(ctx, t.lease).collect(ctx, l.m.cfg.OperationTimeout, func(a answer[bool]) bool {
		if isWrongType(a.err) {
			a.err = nil // somebody put something else there: it is not ours any more
		}
		v.count(a.node, a.value, a.err)
		return false
	})
	v.closeAll(noAnswer(l.m.cfg.OperationTimeout))

	switch {
	case s == lost || v.granted < l.m.Quorum():
		return v.error("release", l.key, ErrLockLost)
	case len(v.errs) > 0:
		return v.error("release", l.key, nil)
	default:
		l.m.cfg.Logger.V(1).Info("Lease released", "key", l.key)
		return nil
	}
}

// take ends the handle's term as released, and returns it with the state it was in.
func (l *Lock) take() (*term, state) {
	t, s := l.look()
	if s == held && !l.end(t, released) {
		s = l.stateOf(t) // lost, or released by somebody else, in this very moment
	}
	if s == lost {
		l.mu.Lock()
		t.state = released // told once; Lost stays closed
		l.mu.Unlock()
	}
	return t, s
}
