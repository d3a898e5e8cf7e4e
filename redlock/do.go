package redlock

import (
	"context"
	"errors"
)

// Do runs fn while holding the lease at key: it waits for the lease as Lock does, renews it every third of its
// TTL unless WithAutoRenew says otherwise, and releases it when fn has returned, or panicked.
//
// The context that fn gets is cancelled with cause ErrLockLost when the lease is lost, and carries the fencing
// token: see FencingTokenFrom. Do returns the error of fn, joined with ErrLockLost if the lease was lost
// meanwhile; if the lease was not acquired, fn is not run and the error is Lock's.
func (m *Manager) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...LockOption) (err error) {
	if fn == nil {
		return invalid("fn", "nil", "there is nothing to do")
	}
	l := m.NewLock(key, opts...)
	if !l.opts.autoRenew {
		l.opts.autoRenew, l.opts.renewEvery = true, l.opts.expiry/3
		if l.invalid == nil {
			l.invalid = m.checkOptions(key, &l.opts)
		}
	}
	if err := l.Lock(ctx); err != nil {
		return err
	}
	defer func() {
		// A release that missed a node is no failure of the work: the majority did release.
		if released := l.Unlock(ctx); errors.Is(released, ErrLockLost) {
			err = errors.Join(err, released)
		}
	}()
	ctx, cancel := l.Context(ctx)
	defer cancel()
	return fn(context.WithValue(ctx, fencingTokenKey{}, l.FencingToken()))
}

type fencingTokenKey struct{}

// FencingTokenFrom returns the fencing token of the lease under which a function of Manager.Do runs. It reports
// false in any other context, and without fencing.
func FencingTokenFrom(ctx context.Context) (token uint64, ok bool) {
	token, _ = ctx.Value(fencingTokenKey{}).(uint64)
	return token, token != 0
}
