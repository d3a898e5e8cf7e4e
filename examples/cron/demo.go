package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/election"
)

const (
	every = 100 * time.Millisecond // between two runs of a job
	// A real job has longer ones; these keep the demo short.
	leaseDuration = 2 * time.Second
	renewDeadline = time.Second
	retryPeriod   = 200 * time.Millisecond
)

// demo is one showing. Each act fails if what it announces does not happen.
type demo struct {
	redis     *redis.Options
	admin     *redis.Client
	books     *books
	namespace string
	start     time.Time
}

func (d *demo) run(ctx context.Context) error {
	for _, act := range []func(context.Context) error{d.elected, d.stale, d.locked, d.ticker} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	d.say("seen: one scheduler at a time, a takeover, a stale writer refused")
	return nil
}

func (d *demo) say(format string, args ...any) {
	fmt.Printf("%6.2fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) election(job string) election.Config {
	return election.Config{
		Namespace: d.namespace, Name: job,
		FenceFloor:    func(ctx context.Context) (uint64, error) { return d.books.floor(ctx, job) },
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
	}
}

// electedHost starts a host whose scheduler calls run while it leads.
func (d *demo) electedHost(name, job string, run func(write func() error) error) (*host, error) {
	h, err := d.newHost(name)
	if err != nil {
		return nil, err
	}
	elector, err := h.elect(d.election(job))
	if err != nil {
		return h, err
	}
	task := elector.Job(func(_ context.Context, epoch uint64) error {
		return run(func() error {
			// Not under the ctx of the job: a process that was paused does not know either that it should not write.
			return d.books.write(context.Background(), claimAgain, job, h.name, epoch)
		})
	})
	return h, h.schedule(job, every, task, gocron.WithDistributedElector(elector))
}

// elected shows two schedulers of which one is elected, and a handover when it is stopped.
func (d *demo) elected(ctx context.Context) (err error) {
	const job = "report"
	d.say("elected: two schedulers; the job %q runs on the one that leads", job)
	hosts := map[string]*host{}
	defer func() { err = errors.Join(err, stopAll(hosts)) }()
	var runs census
	for _, name := range []string{"a", "b"} {
		if hosts[name], err = d.electedHost(name, job, runs.count); err != nil {
			return err
		}
	}
	first, err := d.awaitRuns(ctx, job, 3, 1)
	if err != nil {
		return err
	}
	d.say("elected: the host that leads is stopped")
	if err := hosts[first.writer].stop(); err != nil {
		return err
	}
	delete(hosts, first.writer)
	second, err := d.awaitRuns(ctx, job, 3, first.fence+1)
	if err != nil {
		return err
	}
	if second.writer == first.writer {
		return fmt.Errorf("%s leads again, though it was stopped", first.writer)
	}
	return errors.Join(runs.check(job), d.check(ctx, job))
}

// stale shows a leader that is paused in the middle of a job, loses its lease meanwhile, and then goes on.
func (d *demo) stale(ctx context.Context) (err error) {
	const job = "billing"
	d.say("stale: two schedulers; the leader will be paused in the middle of a run")
	hosts := map[string]*host{}
	defer func() { err = errors.Join(err, stopAll(hosts)) }()
	var pause atomic.Bool // the next run
	paused, resume, wrote := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	goOn := sync.OnceFunc(func() { close(resume) })
	defer goOn() // before the hosts are stopped, which wait for their jobs
	for _, name := range []string{"c", "d"} {
		hosts[name], err = d.electedHost(name, job, func(write func() error) error {
			if !pause.CompareAndSwap(true, false) {
				return write()
			}
			close(paused)
			<-resume
			err := write()
			wrote <- err
			return err
		})
		if err != nil {
			return err
		}
	}
	first, err := d.awaitRuns(ctx, job, 1, 1)
	if err != nil {
		return err
	}
	pause.Store(true)
	select {
	case <-paused:
	case <-ctx.Done():
		return fmt.Errorf("waiting for a run of %s to be paused: %w", first.writer, ctx.Err())
	}
	d.say("stale: a run of %s is paused under epoch %d, and its lease is deleted from Redis", first.writer, first.fence)
	if err := d.admin.Del(ctx, d.key(job, "lease")).Err(); err != nil {
		return err
	}
	second, err := d.awaitRuns(ctx, job, 1, first.fence+1)
	if err != nil {
		return err
	}
	d.say("stale: %s goes on, and writes", first.writer)
	goOn()
	err = <-wrote
	if !errors.Is(err, errStale) {
		return errors.Join(err, fmt.Errorf("the write of %s under epoch %d was not refused as stale, after one of %s under epoch %d",
			first.writer, first.fence, second.writer, second.fence))
	}
	d.say("stale: %v", err)
	return d.check(ctx, job)
}

// locked shows two schedulers that take a lease for every run.
func (d *demo) locked(ctx context.Context) (err error) {
	const job = "cleanup"
	d.say("locked: two schedulers; each run of the job %q takes a lease of its own", job)
	hosts := map[string]*host{}
	defer func() { err = errors.Join(err, stopAll(hosts)) }()
	var runs census
	for _, name := range []string{"e", "f"} {
		h, err := d.newHost(name)
		if err != nil {
			return err
		}
		hosts[name] = h
		locker := NewLocker(h.leases, d.namespace, leaseDuration, every/2, d.books.floor)
		task := locker.Job(job, func(ctx context.Context, fence uint64) error {
			return runs.count(func() error { return d.books.write(ctx, claimOnce, job, h.name, fence) })
		})
		if err := h.schedule(job, every, task, gocron.WithDistributedLocker(locker)); err != nil {
			return err
		}
	}
	if _, err := d.awaitRuns(ctx, job, 1, 6); err != nil {
		return err
	}
	return errors.Join(runs.check(job), d.check(ctx, job))
}

// ticker shows the same without gocron: Lead runs a loop while it leads.
func (d *demo) ticker(ctx context.Context) (err error) {
	const job = "heartbeat"
	d.say("ticker: two plain tickers; each waits for its turn to lead, ticks three times and leaves")
	hosts := map[string]*host{}
	defer func() { err = errors.Join(err, stopAll(hosts)) }()
	done := make(chan error, 2)
	for _, name := range []string{"g", "h"} {
		h, err := d.newHost(name)
		if err != nil {
			return err
		}
		hosts[name] = h
		cfg := d.election(job)
		cfg.Manager, cfg.Identity = h.leases, name
		go func() {
			done <- election.Lead(ctx, cfg, func(term context.Context) error {
				epoch, _ := election.EpochFrom(term)
				return d.tick(term, job, name, epoch)
			})
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		return err
	}
	if _, err := d.awaitRuns(ctx, job, 3, 2); err != nil {
		return err
	}
	return d.check(ctx, job)
}

func (d *demo) tick(ctx context.Context, job, name string, epoch uint64) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for range 3 {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := d.books.write(ctx, claimAgain, job, name, epoch); err != nil {
			return err
		}
	}
	return nil
}

// census counts the runs that overlap.
type census struct{ running, overlaps atomic.Int32 }

func (c *census) count(write func() error) error {
	if c.running.Add(1) > 1 {
		c.overlaps.Add(1)
	}
	defer c.running.Add(-1)
	time.Sleep(every / 4) // a run that takes no time overlaps with nothing
	return write()
}

func (c *census) check(job string) error {
	if n := c.overlaps.Load(); n > 0 {
		return fmt.Errorf("%d runs of %q overlapped", n, job)
	}
	return nil
}

// awaitRuns waits until a job has run n times under one fence that is not below the given one, and returns the last
// of these runs.
func (d *demo) awaitRuns(ctx context.Context, job string, n int, fence uint64) (last entry, err error) {
	for {
		all, err := d.books.entries(ctx, job)
		if err != nil {
			return entry{}, fmt.Errorf("waiting for %d runs of %q under fence %d or higher: %w", n, job, fence, err)
		}
		if len(all) > 0 {
			last = all[len(all)-1]
			runs := len(all) - slices.IndexFunc(all, func(e entry) bool { return e.fence == last.fence })
			if last.fence >= fence && runs >= n {
				d.say("        %q runs on %s under fence %d", job, last.writer, last.fence)
				return last, nil
			}
		}
		select {
		case <-time.After(every / 10):
		case <-ctx.Done():
			return entry{}, fmt.Errorf("waiting for %d runs of %q under fence %d or higher: %w", n, job, fence, ctx.Err())
		}
	}
}

// check checks that each fence was one host's, and that none came after a higher one.
func (d *demo) check(ctx context.Context, job string) error {
	all, err := d.books.entries(ctx, job)
	if err != nil {
		return err
	}
	for i, e := range all[1:] {
		before := all[i]
		if e.fence < before.fence || e.fence == before.fence && e.writer != before.writer {
			return fmt.Errorf("%q ran on %s under fence %d after %s under fence %d", job, e.writer, e.fence, before.writer, before.fence)
		}
	}
	return nil
}

func (d *demo) key(job, what string) string { return fmt.Sprintf("{%s/%s}:%s", d.namespace, job, what) }

// clear removes what the demo has left in Redis.
func (d *demo) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, job := range []string{"report", "billing", "cleanup", "heartbeat"} {
		if err := d.admin.Del(ctx, d.key(job, "lease"), d.key(job, "epoch"), d.key(job, "fence")).Err(); err != nil {
			return fmt.Errorf("removing the keys of the demo: %w", err)
		}
	}
	return nil
}

func stopAll(hosts map[string]*host) error {
	var errs []error
	for _, h := range hosts {
		if h != nil {
			errs = append(errs, h.stop())
		}
	}
	return errors.Join(errs...)
}
