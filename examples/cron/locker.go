package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/ndyakov/go-redlock/redlock"
)

// Locker lets one of several gocron schedulers run a job at a time, each run under a lease of its own:
// gocron.WithDistributedLocker(locker). Any of them may have the next run. It is safe for concurrent use.
type Locker struct {
	leases *redlock.Manager
	prefix string
	expiry time.Duration
	splay  time.Duration
	floor  Floor

	mu   sync.Mutex
	held map[string]*redlock.Lock // by job
}

// Floor returns the highest fencing token under which a job has written. The next one exceeds it, also when Redis has
// lost its counter: otherwise every run would be refused until the counter is there again. It is called for every run.
type Floor func(ctx context.Context, job string) (uint64, error)

// NewLocker returns a Locker whose leases are at {prefix/job}:lease, expire after expiry unless they are renewed, and
// are held for splay at least: schedulers do not tick at the same moment, and a job that is done when the last one
// ticks would run once more. Splay must be longer than the clocks differ, and shorter than the time between two runs
// and than gocron.WithStopTimeout. Floor may be nil.
func NewLocker(leases *redlock.Manager, prefix string, expiry, splay time.Duration, floor Floor) *Locker {
	if floor == nil {
		floor = func(context.Context, string) (uint64, error) { return 0, nil }
	}
	return &Locker{
		leases: leases, prefix: prefix, expiry: expiry, splay: splay, floor: floor,
		held: make(map[string]*redlock.Lock),
	}
}

// Lock is called by gocron before a run of the job. An error, such as redlock.ErrNotAcquired, has the run skipped here.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	key := fmt.Sprintf("{%s/%s}", l.prefix, job)
	lock := l.leases.NewLock(key+":lease",
		redlock.WithExpiry(l.expiry), redlock.WithAutoRenew(l.expiry/3), redlock.WithAttempts(1),
		redlock.WithQuorumFencing(key+":fence"),
		redlock.WithFenceFloor(func(ctx context.Context) (uint64, error) { return l.floor(ctx, job) }))
	if err := lock.TryLock(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[job] = lock
	return &runLease{l, job, lock, time.Now()}, nil
}

// Job returns fn as a task for the gocron job of that name. Its ctx ends when the lease of the run is lost, and
// fence is the fencing token of that lease, for what fn writes.
func (l *Locker) Job(job string, fn func(ctx context.Context, fence uint64) error) func(context.Context) error {
	return func(ctx context.Context) error {
		l.mu.Lock()
		lock := l.held[job]
		l.mu.Unlock()
		if lock == nil {
			return fmt.Errorf("job %q runs without a lease: its scheduler has another name for it, or no locker", job)
		}
		ctx, cancel := lock.Context(ctx)
		defer cancel()
		return fn(ctx, lock.FencingToken())
	}
}

// runLease is the lease of one run of a job.
type runLease struct {
	locker *Locker
	job    string
	lock   *redlock.Lock
	begun  time.Time
}

// Unlock is called by gocron after the run. It waits for what is left of the splay, and releases. It does so when ctx
// has ended as well, as in a shutdown: the others are still to tick.
func (r *runLease) Unlock(ctx context.Context) error {
	select {
	case <-time.After(time.Until(r.begun.Add(r.locker.splay))):
	case <-r.lock.Lost(): // nothing is left to hold
	}
	r.locker.mu.Lock()
	if r.locker.held[r.job] == r.lock { // a lease that was lost may have a successor
		delete(r.locker.held, r.job)
	}
	r.locker.mu.Unlock()
	return r.lock.Unlock(ctx)
}
