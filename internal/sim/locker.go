package sim

import (
	"context"
	"errors"
	"time"

	"github.com/ndyakov/go-redlock/redlock"
)

// locker is a candidate that uses redlock by itself: it acquires the lease, works, and releases it, crashes,
// or just stops for a while, until ctx ends.
func (w *world) locker(ctx context.Context, candidate int) {
	for life := 1; ctx.Err() == nil; life++ {
		p := w.start(candidate, life)
		p.lockUntilCrash(ctx)
		if p.dead.Load() {
			p.close()
			sleep(ctx, p.upTo(w.plan.ttl/2))
		} else {
			p.end()
		}
	}
}

func (p *process) lockUntilCrash(ctx context.Context) {
	for ctx.Err() == nil && !p.dead.Load() {
		if l := p.manager.NewLock(keys.Lease, p.options()...); p.acquire(ctx, l) {
			p.hold(ctx, l)
		}
	}
}

func (p *process) options() []redlock.LockOption {
	plan, options := p.w.plan, []redlock.LockOption{}
	if p.draw(2) == 0 {
		options = append(options, redlock.WithAutoRenew(plan.renewal))
	}
	if p.draw(2) == 0 {
		options = append(options, redlock.WithRenewDeadline(plan.renewal+1+p.upTo(plan.ttl/2)))
	}
	if plan.fenced() {
		options = append(options, redlock.WithQuorumFencing(keys.Epoch))
		if plan.floor {
			options = append(options, redlock.WithFenceFloor(p.w.judge.floor))
		}
	}
	if p.draw(2) == 0 {
		options = append(options, redlock.WithMetadata(p.name))
	}
	return options
}

// acquire tries to get the lease, sometimes with little patience.
func (p *process) acquire(ctx context.Context, l *redlock.Lock) bool {
	patience := 3 * p.w.plan.maxTTL()
	if p.draw(4) == 0 {
		patience = 1 + p.upTo(p.w.plan.timeout*3)
	}
	began := time.Now()
	attempt, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	try := l.Lock
	if p.draw(3) == 0 {
		try = l.TryLock
	}
	if err := try(attempt); err != nil {
		p.note("did not acquire: %v", err)
		sleep(ctx, p.upTo(p.w.plan.ttl/4))
		return false
	}
	p.note("acquired, token %d, valid for %v", l.FencingToken(), time.Until(l.ValidUntil()))
	p.w.judge.entered(&tenure{process: p, lock: l, lost: l.Lost(), began: began, fence: l.FencingToken(), holds: l.Held})
	return true
}

// hold works under the lease until a drawn time, or its loss, and ends it.
func (p *process) hold(ctx context.Context, l *redlock.Lock) {
	plan := p.w.plan
	for end := time.Now().Add(p.upTo(plan.ttl * time.Duration(1+3*p.draw(2)) / 2)); time.Now().Before(end) && ctx.Err() == nil; {
		select {
		case <-l.Lost():
			p.note("was told that it lost the lease")
			end = time.Now()
		case <-ctx.Done():
		case <-time.After(plan.ttl / time.Duration(6+p.draw(6))):
		}
		if p.draw(2) == 0 && l.Held() && p.w.faulty() {
			ttl := []time.Duration{plan.ttl / 8, plan.ttl / 8, plan.ttl / 4, plan.ttl, plan.maxTTL()}[p.draw(5)]
			err := l.Extend(ctx, ttl)
			p.note("extends to %v: %v", ttl, err)
		}
	}
	p.w.judge.check()
	if p.w.faulty() && ctx.Err() == nil && p.draw(5) == 0 {
		p.crash()
		return
	}
	p.w.judge.left(p)
	p.unlock(l)
}

func (p *process) unlock(l *redlock.Lock) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if p.draw(2) == 0 {
		cancel()
	}
	err := l.Unlock(ctx)
	p.note("unlocks: %v", err)
	if errors.Is(err, redlock.ErrNotHeld) {
		p.w.judge.report("%s: Unlock of an acquired lease says %v", p.name, err)
	}
}
