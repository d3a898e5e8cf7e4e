package election

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/redlock"
)

// term is one time of leading, from the acquisition of its lease to the loss or the release.
type term struct {
	lock   *redlock.Lock // of this lease only
	leader Leader        // us
	epoch  uint64

	ctx    context.Context // the work's
	cancel context.CancelCauseFunc

	working context.Context // ends when OnStartedLeading has returned
	worked  context.CancelFunc

	over atomic.Pointer[time.Time] // when this process ceased to call itself the leader
	done chan struct{}             // closed when everything of the term but its work has ended
	err  error                     // then: why it did not end in good order
}

// newTerm takes the values of ctx, but not its end: what the work is told, and when, is for lead to decide.
func newTerm(ctx context.Context, lock *redlock.Lock, r rl.LeaderElectionRecord) *term {
	t := &term{lock: lock, epoch: lock.FencingToken(), done: make(chan struct{})}
	t.leader = Leader{
		Identity:    r.HolderIdentity,
		Epoch:       t.epoch,
		Since:       r.AcquireTime.Time,
		Transitions: r.LeaderTransitions,
	}
	if t.epoch > 0 {
		t.leader.Transitions = int(t.epoch - 1)
	}
	ctx = context.WithValue(context.WithoutCancel(ctx), epochKey{}, t.epoch)
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.working, t.worked = context.WithCancel(context.Background())
	return t
}

func (t *term) leading() bool { return t.over.Load() == nil && t.lock.Held() }

type epochKey struct{}

// EpochFrom returns the epoch of the term for which OnStartedLeading, or the function of Lead, was called with
// ctx. Whatever the work writes should carry it, to a place that refuses a lower epoch than the highest seen.
// It reports false in any other context, and where there are no epochs: with a Redlock Manager without Config.QuorumFencing.
func EpochFrom(ctx context.Context) (epoch uint64, ok bool) {
	epoch, _ = ctx.Value(epochKey{}).(uint64)
	return epoch, epoch != 0
}

// lead is a term from its beginning to its end. It returns as soon as others may lead: work that does not heed
// its context may go on.
func (e *Elector) lead(ctx context.Context, t *term) {
	defer close(t.done)
	e.term.Store(t)
	e.follows(t.leader)
	e.logger.Info("Started leading", "epoch", t.epoch)
	r := e.keepRenewing(t)
	defer r.stop()
	go t.work(e.cfg.Callbacks.OnStartedLeading)

	select {
	case <-t.lock.Lost():
		t.cancel(ErrLost)
	case <-t.ctx.Done(): // StepDown
	case <-ctx.Done():
		t.cancel(fmt.Errorf("%w: %w", ErrStopping, context.Cause(ctx)))
	}
	select { // nobody else may lead before the work has ended, for as long as that can be had
	case <-t.lock.Lost():
	case <-t.working.Done():
	}
	lost := !t.lock.Held()

	now := time.Now()
	t.over.Store(&now)
	e.vacate()
	e.cfg.Callbacks.OnStoppedLeading()
	if err := r.stop(); lost {
		t.err = e.lose(t, err)
	} else {
		t.err = e.retire(ctx, t)
	}
}

// work runs OnStartedLeading. As in client-go, a panic is logged and ends the process.
func (t *term) work(onStartedLeading func(context.Context)) {
	defer t.worked()
	defer utilruntime.HandleCrashWithContext(t.ctx)
	onStartedLeading(t.ctx)
}

// lose closes the books of a term that was lost, for the reason that the last renewal gave, if any.
func (e *Elector) lose(t *term, last error) error {
	reason := lossReason(last)
	e.metrics.loss(reason)
	values := []any{"epoch", t.epoch, "reason", reason}
	if last != nil {
		values = append(values, "error", last.Error())
	}
	e.logger.Info("Stopped leading: the lease is lost", values...)
	return ErrLost
}

// retire releases the lease of a term that ended in good order, or leaves it to expire.
func (e *Elector) retire(ctx context.Context, t *term) error {
	cause := context.Cause(t.ctx)
	if !e.cfg.ReleaseOnCancel && !errors.Is(cause, ErrSteppedDown) {
		e.logger.Info("Stopped leading: the lease is left to expire", "epoch", t.epoch, "reason", cause.Error())
		return nil
	}
	err := t.lock.Unlock(ctx)
	if errors.Is(err, redlock.ErrLockLost) {
		e.logger.Info("Stopped leading: the release was not confirmed", "epoch", t.epoch, "error", err.Error())
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	e.logger.Info("Stopped leading: the lease is released", "epoch", t.epoch, "reason", cause.Error())
	return nil
}
