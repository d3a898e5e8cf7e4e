package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ndyakov/go-redlock/redlock"
)

// candidate is a process that acquires the lease, works, and releases it, crashes, or just stops for a while,
// until ctx ends.
func (w *world) candidate(ctx context.Context, c int) {
	r := rand.New(rand.NewPCG(w.plan.seed, uint64(c+1)))
	m, end := w.newManager(c)
	defer func() { end() }()
	for ctx.Err() == nil {
		l := m.NewLock(leaseKey, w.drawOptions(r)...)
		if !w.campaign(ctx, r, c, l) {
			continue
		}
		if crash := w.lead(ctx, r, c, l); crash {
			end()
			sleep(ctx, time.Duration(r.Int64N(int64(w.plan.ttl))))
			m, end = w.newManager(c)
		}
	}
}

func (w *world) drawOptions(r *rand.Rand) []redlock.LockOption {
	var opts []redlock.LockOption
	if r.IntN(2) == 0 {
		every := w.plan.ttl / time.Duration(3+r.IntN(5))
		opts = append(opts, redlock.WithAutoRenew(every))
		if r.IntN(2) == 0 {
			opts = append(opts, redlock.WithRenewDeadline(every+w.plan.ttl/4))
		}
	}
	if w.plan.nodes == 1 {
		opts = append(opts, redlock.WithFencingToken(fenceKey), redlock.WithFenceFloor(w.judge.floor))
	} else if r.IntN(2) == 0 {
		opts = append(opts, redlock.WithMetadata("candidate"))
	}
	return opts
}

// campaign tries to acquire, sometimes with little patience.
func (w *world) campaign(ctx context.Context, r *rand.Rand, c int, l *redlock.Lock) bool {
	patience := 3 * w.plan.maxTTL()
	if r.IntN(4) == 0 {
		patience = time.Duration(1 + r.Int64N(int64(w.plan.timeout*3)))
	}
	began := time.Now()
	attempt, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	acquire := l.Lock
	if r.IntN(3) == 0 {
		acquire = l.TryLock
	}
	if err := acquire(attempt); err != nil {
		w.note("%d did not acquire: %v", c, err)
		sleep(ctx, time.Duration(r.Int64N(int64(w.plan.ttl/4))))
		return false
	}
	w.judge.entered(c, l, began)
	return true
}

// lead works under the lease until a drawn time, or its loss, and ends it. It reports whether the process dies.
func (w *world) lead(ctx context.Context, r *rand.Rand, c int, l *redlock.Lock) (crash bool) {
	end := time.Now().Add(time.Duration(r.Int64N(int64(w.plan.ttl * 3 / 2))))
	for time.Now().Before(end) && ctx.Err() == nil {
		select {
		case <-l.Lost():
			w.note("%d was told that it lost the lease", c)
			end = time.Now()
		case <-time.After(w.plan.ttl / time.Duration(8+r.IntN(8))):
		}
		if r.IntN(6) == 0 && l.Held() {
			ttl := w.plan.ttl * time.Duration(1+r.IntN(8)) / 4
			err := l.Extend(ctx, ttl)
			w.note("%d extends to %v: %v", c, ttl, err)
		}
	}
	crash = ctx.Err() == nil && r.IntN(5) == 0
	w.judge.leaves(l, crash)
	if crash {
		w.note("%d crashes", c)
		return true
	}
	unlock, cancel := context.WithCancel(context.Background())
	if r.IntN(2) == 0 {
		cancel()
	}
	defer cancel()
	err := l.Unlock(unlock)
	w.note("%d unlocks: %v", c, err)
	if errors.Is(err, redlock.ErrNotHeld) {
		w.judge.mu.Lock()
		w.judge.fault("%d: Unlock of an acquired lease says %v", c, err)
		w.judge.mu.Unlock()
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
