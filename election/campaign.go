package election

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

// campaign waits for the lease and takes it. It returns nil when ctx has ended, and redlock.ErrClosed when there
// is nothing left to wait for.
//
// A candidate looks before it tries: while somebody leads, that costs the nodes one read per TTL.
func (e *Elector) campaign(ctx context.Context, w *redlock.Watch) (*term, error) {
	meetings := 0 // with other candidates, at a lease that none of us got
	for {
		var t *term
		held, wait, err := e.look(ctx)
		switch {
		case err == nil && held:
			meetings = 0
		case err == nil:
			t, err = e.stand(ctx)
			wait = rand.N(min(e.cfg.RetryPeriod, 5*time.Millisecond<<min(meetings, 10)) + 1)
			meetings++
		}
		e.report(ctx, err)
		if t != nil {
			return t, nil
		}
		if err != nil {
			wait = jittered(e.cfg.RetryPeriod)
		}
		if err := w.Wait(ctx, wait); err != nil {
			return nil, unlessOver(ctx, err)
		}
	}
}

// standBy follows the election without taking part: until the work of t has returned, also when ctx ends
// before, and after StepDown for one RetryPeriod more.
func (e *Elector) standBy(ctx context.Context, w *redlock.Watch, t *term) {
	out, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.working, cancel)()
	e.follow(out, w)
	<-t.working.Done()

	if errors.Is(context.Cause(t.ctx), ErrSteppedDown) {
		out, cancel := context.WithTimeout(ctx, e.cfg.RetryPeriod)
		defer cancel()
		e.follow(out, w)
	}
}

// follow watches who leads until ctx ends.
func (e *Elector) follow(ctx context.Context, w *redlock.Watch) {
	for {
		held, ttl, err := e.look(ctx)
		e.report(ctx, err)
		if err != nil || !held { // nobody tells us when somebody begins to lead
			ttl = jittered(e.cfg.RetryPeriod)
		}
		if w.Wait(ctx, ttl) != nil {
			return
		}
	}
}

// look finds out who leads, and for how long that holds if the lease is not renewed.
func (e *Elector) look(ctx context.Context) (held bool, ttl time.Duration, err error) {
	h, held, err := e.cfg.Manager.Holder(ctx, e.keys.Lease)
	if err != nil {
		return false, 0, err
	}
	if !held {
		e.vacate()
		return false, 0, nil
	}
	e.follows(leaderOf(h))
	// Whoever holds the lease for longer than we would may also go without a word.
	return true, min(h.TTL, e.cfg.LeaseDuration), nil
}

// stand tries once to take the lease. It returns neither a term nor an error when somebody else was faster.
func (e *Elector) stand(ctx context.Context) (*term, error) {
	r := e.cfg.record(e.transitions() + 1)
	lock := e.cfg.Manager.NewLock(e.keys.Lease, e.options(r)...)
	err := lock.TryLock(ctx)
	switch {
	case err == nil && ctx.Err() != nil: // too late to begin
		_ = lock.Unlock(ctx)
		return nil, ctx.Err()
	case err == nil && lock.Held():
		return newTerm(ctx, lock, r), nil
	}
	if q := (*redlock.QuorumError)(nil); errors.As(err, &q) && q.Contended() {
		return nil, nil
	}
	return nil, err
}

func (e *Elector) options(r rl.LeaderElectionRecord) []redlock.LockOption {
	options := []redlock.LockOption{
		redlock.WithExpiry(e.cfg.LeaseDuration),
		redlock.WithAttempts(1),
		redlock.WithRenewDeadline(min(e.cfg.RenewDeadline, e.cfg.Manager.Validity(e.cfg.LeaseDuration))),
		redlock.WithMetadata(record.Encode(r)),
	}
	if e.cfg.hasEpochs() {
		options = append(options, redlock.WithQuorumFencing(e.keys.Epoch), redlock.WithFenceFloor(e.floor))
	}
	return options
}

// record is what others can read of the leader. Where there are epochs, they count transitions by them.
func (c Config) record(transitions int) rl.LeaderElectionRecord {
	return rl.LeaderElectionRecord{
		HolderIdentity:       c.Identity,
		LeaseDurationSeconds: int(math.Ceil(c.LeaseDuration.Seconds())),
		AcquireTime:          metav1.Now(),
		LeaderTransitions:    transitions,
	}
}

// report logs the beginning and the end of trouble, not every attempt in between.
func (e *Elector) report(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err == nil && e.trouble:
		e.logger.Info("Election goes on")
	case err != nil && !e.trouble:
		e.logger.Error(err, "Election cannot go on; trying again every RetryPeriod")
	case err != nil:
		e.logger.V(1).Info("Election still cannot go on", "reason", err.Error())
	}
	e.trouble = err != nil
}

// unlessOver returns err unless ctx has ended, which is no failure.
func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// jittered returns d less up to a quarter of it: those who began together must not stay together.
func jittered(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
