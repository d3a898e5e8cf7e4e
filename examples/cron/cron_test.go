package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDemo(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		if err := run(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("real", func(t *testing.T) {
		server := redistest.Start(t)
		if err := run(t.Context(), []string{"--redis", server.Addr()}); err != nil {
			t.Error(err)
		}
		if left := server.Client().Keys(t.Context(), "*").Val(); len(left) > 0 {
			t.Errorf("it has left %q", left)
		}
	})
}

// Each lacks something of what is to be seen, and says what.
func TestDemoTellsWhatIsMissing(t *testing.T) {
	t.Run("nobody runs the job", func(t *testing.T) {
		d := newDemo(t)
		if err := d.admin.Set(t.Context(), d.key("report", "lease"), "somebody else's", 0).Err(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.run(ctx); err == nil || !strings.Contains(err.Error(), `waiting for 3 runs of "report"`) {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("the database forgets its fence", func(t *testing.T) {
		d := newDemo(t)
		_, err := d.books.db.Exec(`CREATE TRIGGER forget AFTER INSERT ON runs BEGIN UPDATE jobs SET last_fence = 0; END`)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.stale(t.Context()); err == nil || !strings.Contains(err.Error(), "not refused as stale") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("the fence of another", func(t *testing.T) {
		d := newDemo(t)
		for _, writer := range []string{"a", "b"} {
			if err := d.books.write(t.Context(), claimAgain, "report", writer, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.check(t.Context(), "report"); err == nil || !strings.Contains(err.Error(), "b under fence 1 after a under fence 1") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("runs overlap", func(t *testing.T) {
		var runs census
		_ = runs.count(func() error { return runs.count(func() error { return nil }) })
		if err := runs.check("report"); err == nil || !strings.Contains(err.Error(), `1 runs of "report"`) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestBadUseIsNamed(t *testing.T) {
	silenceStderr(t)
	for _, c := range []struct {
		args []string
		word string
	}{
		{[]string{"x"}, `"x"`},
		{[]string{"--redis", "a:1,b:2"}, `"a:1,b:2"`},
		{[]string{"--redis", "127.0.0.1:1"}, "127.0.0.1:1"},
		{[]string{"--nonsense"}, "nonsense"},
	} {
		if err := run(t.Context(), c.args); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%q: error is %v", c.args, err)
		}
	}
	if err := run(t.Context(), []string{"-h"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: error is %v", err)
	}
}

func TestBooksRefuseWhatIsStale(t *testing.T) {
	b := newBooks(t)
	for i, step := range []struct {
		claim string
		fence uint64
		stale bool
	}{
		{claimAgain, 1, false}, {claimAgain, 1, false}, {claimAgain, 3, false}, {claimAgain, 2, true},
		{claimOnce, 3, true}, {claimOnce, 4, false}, {claimOnce, 4, true}, {claimOnce, 1 << 62, false}, {claimAgain, 4, true},
	} {
		if err := b.write(t.Context(), step.claim, "job", "me", step.fence); errors.Is(err, errStale) != step.stale || (err != nil) != step.stale {
			t.Errorf("step %d: %v", i, err)
		}
	}
	all, err := b.entries(t.Context(), "job")
	if err != nil || len(all) != 5 {
		t.Errorf("%d runs recorded, want 5 (%v)", len(all), err)
	}
	if floor, err := b.floor(t.Context(), "job"); floor != 1<<62 || err != nil {
		t.Errorf("floor is %d, %v", floor, err)
	}
	if floor, err := b.floor(t.Context(), "other"); floor != 0 || err != nil {
		t.Errorf("floor of a new job is %d, %v", floor, err)
	}
}

// A leader that is stopped keeps its lease until the job that runs has ended: the next one begins afterwards.
func TestElectorWaitsForItsJobs(t *testing.T) {
	addr, job := redistest.Single(t), redistest.Key(t)
	cfg := func(name string) election.Config {
		return election.Config{
			Manager: leases(t, addr), Name: job, Identity: name,
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		}
	}
	a, err := NewElector(cfg("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Job(func(context.Context, uint64) error { t.Error("it runs"); return nil })(); !errors.Is(err, errFollows) {
		t.Errorf("a job of a scheduler that does not lead: %v", err)
	}
	stopA := goRun(t, a)
	eventually(t, "a runs jobs", func() bool { return a.Job(func(context.Context, uint64) error { return nil })() == nil })
	begun, ended := make(chan struct{}), make(chan error, 1)
	var over atomic.Bool
	go func() {
		ended <- a.Job(func(ctx context.Context, epoch uint64) error {
			if epoch != 1 {
				t.Errorf("epoch %d", epoch)
			}
			close(begun)
			<-ctx.Done() // told at once,
			time.Sleep(300 * time.Millisecond)
			if err := a.IsLeader(ctx); !errors.Is(err, errFollows) {
				t.Errorf("a begins runs while it stops: %v", err)
			}
			over.Store(true)
			return context.Cause(ctx)
		})()
	}()
	b, err := NewElector(cfg("b"))
	if err != nil {
		t.Fatal(err)
	}
	goRun(t, b)
	<-begun
	if err := b.IsLeader(t.Context()); !errors.Is(err, errFollows) {
		t.Errorf("b leads as well: %v", err)
	}
	go stopA()
	eventually(t, "b leads", func() bool { return b.IsLeader(t.Context()) == nil })
	if !over.Load() {
		t.Error("b leads while the job of a still runs")
	}
	if err := <-ended; !errors.Is(err, election.ErrStopping) {
		t.Errorf("the job was told %v", err)
	}
}

// Ticks that are not at the same moment are still one run, and the token of each run is new.
func TestLockerRunsAJobOncePerTick(t *testing.T) {
	addr, job := redistest.Single(t), "job"
	const tick, splay = 300 * time.Millisecond, 100 * time.Millisecond
	var runs atomic.Int32
	var last atomic.Uint64
	first := time.Now().Truncate(tick).Add(2 * tick)
	prefix := redistest.Key(t)
	for i := range 3 {
		locker := NewLocker(leases(t, addr), prefix, leaseDuration, splay, nil)
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
		if err != nil {
			t.Fatal(err)
		}
		task := locker.Job(job, func(_ context.Context, fence uint64) error {
			runs.Add(1)
			if before := last.Swap(fence); fence <= before {
				t.Errorf("token %d after %d", fence, before)
			}
			return nil // at once: the next scheduler is still to tick
		})
		skew := time.Duration(i) * 20 * time.Millisecond
		_, err = s.NewJob(gocron.DurationJob(tick), gocron.NewTask(task), gocron.WithName(job),
			gocron.WithStartAt(gocron.WithStartDateTime(first.Add(skew))))
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	const ticks = 6
	time.Sleep(time.Until(first.Add((ticks-1)*tick + tick/2)))
	if n := runs.Load(); n != ticks {
		t.Errorf("%d runs in %d ticks", n, ticks)
	}
}

// A run that is longer than the lease keeps it. One that has lost it is told, and holds no splay.
func TestLockerRenewsAndTellsTheLoss(t *testing.T) {
	addr, prefix := redistest.Single(t), redistest.Key(t)
	const expiry = 600 * time.Millisecond
	l := NewLocker(leases(t, addr), prefix, expiry, time.Hour, nil)
	if err := l.Job("job", func(context.Context, uint64) error { return nil })(t.Context()); err == nil || !strings.Contains(err.Error(), `"job"`) {
		t.Errorf("a job without a lease: %v", err)
	}
	lock, err := l.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * expiry)
	if _, err := l.Lock(t.Context(), "job"); !errors.Is(err, redlock.ErrNotAcquired) {
		t.Errorf("a second run at a time: %v", err)
	}
	admin := redis.NewClient(&redis.Options{Addr: addr})
	defer admin.Close()
	err = l.Job("job", func(ctx context.Context, _ uint64) error {
		if n := admin.Del(ctx, "{"+prefix+"/job}:lease").Val(); n != 1 {
			t.Errorf("%d keys deleted", n)
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})(t.Context())
	if !errors.Is(err, redlock.ErrLockLost) {
		t.Errorf("the job was told %v", err)
	}
	if err := lock.Unlock(t.Context()); !errors.Is(err, redlock.ErrLockLost) {
		t.Errorf("Unlock: %v", err)
	}
}

// A host that is stopped right after a run keeps the others from running it again: the lease is held for the splay.
func TestLockerHoldsTheSplayInAShutdown(t *testing.T) {
	addr, prefix := redistest.Single(t), redistest.Key(t)
	const splay = 500 * time.Millisecond
	l, other := NewLocker(leases(t, addr), prefix, leaseDuration, splay, nil), NewLocker(leases(t, addr), prefix, leaseDuration, 0, nil)
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(l))
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan struct{})
	task := l.Job("job", func(context.Context, uint64) error { close(ran); return nil })
	if _, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(task), gocron.WithName("job")); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	s.Start()
	<-ran
	down := make(chan error, 1)
	go func() { down <- s.Shutdown() }()
	var lock gocron.Lock
	eventually(t, "the other gets the lease", func() bool { lock, err = other.Lock(t.Context(), "job"); return err == nil })
	if took := time.Since(begun); took < splay {
		t.Errorf("the other has it after %v, within the splay of %v", took, splay)
	}
	if err := errors.Join(<-down, lock.Unlock(t.Context())); err != nil {
		t.Error(err)
	}
}

// A Redis that has lost its counter does not have every run refused.
func TestLockerExceedsItsFloor(t *testing.T) {
	addr, prefix, b := redistest.Single(t), redistest.Key(t), newBooks(t)
	if err := b.write(t.Context(), claimOnce, "job", "me", 41); err != nil {
		t.Fatal(err)
	}
	l := NewLocker(leases(t, addr), prefix, leaseDuration, 0, b.floor)
	lock, err := l.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	err = l.Job("job", func(ctx context.Context, fence uint64) error {
		if fence != 42 {
			t.Errorf("fence %d, want 42", fence)
		}
		return b.write(ctx, claimOnce, "job", "me", fence)
	})(t.Context())
	if err := errors.Join(err, lock.Unlock(t.Context())); err != nil {
		t.Error(err)
	}
}

// The end of a run whose lease was lost leaves the next run, which has begun meanwhile, its lease.
func TestLockerKeepsTheLeaseOfASuccessor(t *testing.T) {
	addr, prefix := redistest.Single(t), redistest.Key(t)
	l := NewLocker(leases(t, addr), prefix, leaseDuration, 0, nil)
	admin := redis.NewClient(&redis.Options{Addr: addr})
	defer admin.Close()
	first, err := l.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if n := admin.Del(t.Context(), "{"+prefix+"/job}:lease").Val(); n != 1 {
		t.Fatalf("%d keys deleted", n)
	}
	second, err := l.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Unlock(t.Context()); !errors.Is(err, redlock.ErrLockLost) {
		t.Errorf("Unlock of the first: %v", err)
	}
	err = l.Job("job", func(_ context.Context, fence uint64) error {
		if fence != 2 {
			t.Errorf("fence %d, want 2", fence)
		}
		return nil
	})(t.Context())
	if err := errors.Join(err, second.Unlock(t.Context())); err != nil {
		t.Error(err)
	}
}

// newDemo returns a demo on an embedded Redis.
func newDemo(t *testing.T) *demo {
	t.Helper()
	options := &redis.Options{Addr: miniredis.RunT(t).Addr()}
	admin := redis.NewClient(options)
	t.Cleanup(func() { _ = admin.Close() })
	return &demo{redis: options, admin: admin, books: newBooks(t), namespace: "test", start: time.Now()}
}

// silenceStderr has what is written there dropped until the test ends.
func silenceStderr(t *testing.T) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stderr
	os.Stderr = null
	t.Cleanup(func() { os.Stderr = before; _ = null.Close() })
}

func newBooks(t *testing.T) *books {
	t.Helper()
	b, err := openBooks(filepath.Join(t.TempDir(), "books.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.db.Close() })
	return b
}

func leases(t *testing.T, addr string) *redlock.Manager {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	m, err := redlock.NewSingle(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(); _ = client.Close() })
	return m
}

// goRun runs a candidate until stop, or until the test ends.
func goRun(t *testing.T, e *Elector) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen that %s", what)
		}
	}
}
