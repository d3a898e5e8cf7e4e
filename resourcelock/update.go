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
	if l.current().held() {
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
	if t := l.current(); t.held() {
		return l.renew(ctx, t, ler)
	}
	return l.acquire(ctx, ler)
}

// isTaken reports whether an acquisition failed because others hold the lease.
func isTaken(err error) bool {
	var q *redlock.QuorumError
	return errors.As(err, &q) && q.Contended()
}

func (l *Lock) acquire(ctx context.Context, ler rl.LeaderElectionRecord) error {
	if !l.clear() {
		return l.wrap("acquiring", errTermLost)
	}
	ttl, err := l.cfg.ttl(ler)
	if err != nil {
		return l.wrap("acquiring", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callBound(ttl))
	defer cancel()
	ler.LeaseDurationSeconds = int(math.Ceil(ttl.Seconds()))
	t := &term{record: record.Encode(ler), ttl: ttl}
	t.lock = l.cfg.Manager.NewLock(l.keys.Lease, l.options(t)...)
	if err := t.lock.TryLock(ctx); err != nil {
		return l.wrap("acquiring", err)
	}
	l.begin(t)
	l.log.Info("Acquired the lease", "epoch", t.lock.FencingToken())
	return nil
}

func (l *Lock) options(t *term) []redlock.LockOption {
	opts := []redlock.LockOption{
		redlock.WithExpiry(t.ttl),
		redlock.WithAttempts(1),
		redlock.WithRenewDeadline(l.cfg.Manager.Validity(t.ttl)),
		redlock.WithMetadata(t.record),
	}
	if l.cfg.hasEpochs() {
		opts = append(opts, redlock.WithQuorumFencing(l.keys.Epoch), redlock.WithFenceFloor(l.floor))
	}
	return opts
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

// renew prolongs the lease of t.
func (l *Lock) renew(ctx context.Context, t *term, ler rl.LeaderElectionRecord) error {
	ttl, err := l.cfg.ttl(ler)
	if err != nil {
		return l.wrap("renewing", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callBound(ttl))
	defer cancel()
	if err := t.lock.Extend(ctx, ttl); err != nil {
		return l.wrap("renewing", err)
	}
	l.prolonged(t, ttl)
	return nil
}

// callBound is how long an acquisition or a renewal may take before client-go, which sets no bound while it acquires,
// is told that it did not work.
func callBound(ttl time.Duration) time.Duration { return ttl / 3 }

// release gives the lease back if it is ours; a lease that somebody else holds by now is not touched, although
// client-go may have read its record just before. Once our validity is over there is nothing to be
// released, and the network is not asked: the stop must not wait for it.
func (l *Lock) release(ctx context.Context) error {
	t := l.current()
	if !t.held() {
		return nil
	}
	l.cancelContexts(redlock.ErrNotHeld) // before others can lead
	err := t.unlock(ctx)
	l.end(t)
	if errors.Is(err, redlock.ErrLockLost) || errors.Is(err, redlock.ErrInconclusive) {
		return l.wrap("releasing", err)
	}
	if err != nil {
		l.log.Info("Released the lease, but not on every node", "reason", err.Error())
		return nil
	}
	l.log.Info("Released the lease", "epoch", t.lock.FencingToken())
	return nil
}

// unlock releases the lease of t. It returns no later than at the end of its validity, for client-go tells the work
// to stop only afterwards; the release goes on.
func (t *term) unlock(ctx context.Context) error {
	end := time.NewTimer(time.Until(t.lock.ValidUntil()))
	defer end.Stop()
	done := make(chan error, 1)
	go func() { done <- t.lock.Unlock(ctx) }()
	select {
	case err := <-done:
		return err
	case <-end.C:
		return redlock.ErrInconclusive
	}
}
