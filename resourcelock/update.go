package resourcelock

import (
	"context"
	"errors"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

// Create acquires the lease, in one attempt. When somebody holds it, the error is AlreadyExists.
func (l *Lock) Create(ctx context.Context, ler rl.LeaderElectionRecord) error {
	if err := ctx.Err(); err != nil {
		return l.wrap("acquiring", err)
	}
	if l.current().ours() {
		return apierrors.NewAlreadyExists(resource, l.cfg.Name)
	}
	err := l.acquire(ctx, ler)
	if isTaken(err) {
		return apierrors.NewAlreadyExists(resource, l.cfg.Name)
	}
	return err
}

// Update renews the lease when this lock holds it, and acquires it, in one attempt, when it does not; with an empty
// HolderIdentity it releases it. No error of it is a Conflict: client-go repeats a release for one without end.
//
// A renewal whose outcome is not known is an error, and may be repeated: the term is the same.
func (l *Lock) Update(ctx context.Context, ler rl.LeaderElectionRecord) error {
	if ler.HolderIdentity == "" {
		return l.release(ctx)
	}
	if err := ctx.Err(); err != nil {
		return l.wrap("updating", err)
	}
	if t := l.current(); t.ours() {
		return l.renew(ctx, t, ler)
	}
	return l.acquire(ctx, ler)
}

// isTaken reports whether an acquisition failed because somebody else holds the lease.
func isTaken(err error) bool {
	var q *redlock.QuorumError
	return errors.Is(err, redlock.ErrNotAcquired) && errors.As(err, &q) && len(q.NodeErrors) == 0
}

func (l *Lock) acquire(ctx context.Context, ler rl.LeaderElectionRecord) error {
	if l.current() != nil { // and it is lost, or it would have been renewed
		return l.wrap("acquiring", errTermLost)
	}
	ttl, err := l.cfg.ttl(ler)
	if err != nil {
		return l.wrap("acquiring", err)
	}
	ler.HolderIdentity = l.cfg.Identity
	ler.LeaseDurationSeconds = int(math.Ceil(ttl.Seconds()))
	opts := []redlock.LockOption{
		redlock.WithExpiry(ttl),
		redlock.WithAttempts(1),
		redlock.WithRenewDeadline(l.cfg.Manager.Validity(ttl)),
		redlock.WithMetadata(record.Encode(ler)),
	}
	if l.cfg.Manager.Mode() == redlock.ModeSingle {
		opts = append(opts, redlock.WithFencingToken(l.keys.Epoch), redlock.WithFenceFloor(l.floor))
	}
	t := &term{lock: l.cfg.Manager.NewLock(l.keys.Lease, opts...)}
	if err := t.lock.TryLock(ctx); err != nil {
		return l.wrap("acquiring", err)
	}
	l.begin(t)
	l.log.Info("Acquired the lease", "epoch", t.lock.FencingToken())
	return nil
}

// floor is what the epoch of the next term must exceed.
func (l *Lock) floor(ctx context.Context) (uint64, error) {
	var asked uint64
	if l.cfg.FenceFloor != nil {
		var err error
		if asked, err = l.cfg.FenceFloor(ctx); err != nil {
			return 0, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(asked, l.highest), nil
}

// renew prolongs the lease. It is one attempt, bounded: client-go has a pace of its own.
func (l *Lock) renew(ctx context.Context, t *term, ler rl.LeaderElectionRecord) error {
	ttl, err := l.cfg.ttl(ler)
	if err != nil {
		return l.wrap("renewing", err)
	}
	ctx, cancel := context.WithTimeout(ctx, renewBound(ttl))
	defer cancel()
	if err := t.lock.Extend(ctx, ttl); err != nil {
		return l.wrap("renewing", err)
	}
	return nil
}

// renewBound is how long a renewal is tried before client-go is told that it did not work.
func renewBound(ttl time.Duration) time.Duration { return ttl / 3 }

// release gives the lease back if it is ours; a lease that somebody else holds by now is not touched, although
// client-go may have read its record just before. Once our validity is over there is nothing to be
// released, and the network is not asked: the stop must not wait for it.
func (l *Lock) release(ctx context.Context) error {
	t := l.current()
	if !t.ours() {
		return nil
	}
	err := t.lock.Unlock(ctx)
	l.end(t)
	if errors.Is(err, redlock.ErrLockLost) {
		return l.wrap("releasing", err)
	}
	if err != nil {
		l.log.Info("Released the lease, but not on every node", "reason", err.Error())
		return nil
	}
	l.log.Info("Released the lease", "epoch", t.lock.FencingToken())
	return nil
}
