package redlock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

// The release came after the watcher had looked, and before its subscription was there.
func TestReleaseBeforeTheSubscriptionIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		m, err := redlock.NewSingle(bubble.NewLink(server).Client(t))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		w := m.Watch("k")
		defer w.Close()
		w.Poll = time.Hour
		synctest.Wait() // subscribed
		begin := time.Now()
		if err := w.Wait(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 0 {
			t.Errorf("it was waited for %v", d)
		}
		if err := w.Wait(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < time.Minute {
			t.Errorf("woken for nothing after %v", d)
		}
	})
}

func TestWatchPollsWhereReleasesCannotBeHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		m, err := redlock.NewSingle(struct{ redlock.Node }{bubble.NewLink(server).Client(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		w := m.Watch("k")
		defer w.Close()
		w.Poll = 2 * time.Second
		begin := time.Now()
		if err := w.Wait(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < 2*time.Second || d > 3*time.Second {
			t.Errorf("it was waited for %v", d)
		}
	})
}

// An outage is a loss at the renew deadline, not one more attempt later, and the error says what the matter was.
func TestRenewDeadlineIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		link := bubble.NewLink(server)
		m, err := redlock.NewSingle(link.Client(t))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		l := m.NewLock("k", redlock.WithExpiry(15*time.Second), redlock.WithRenewDeadline(10*time.Second))
		if err := l.TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		link.Cut()
		go func() { _ = l.Extend(t.Context(), 15*time.Second) }()
		<-l.Lost()
		if d := time.Since(begin); d > 10*time.Second {
			t.Errorf("lost after %v", d)
		}
		link.Mend()
	})
}

// Two nodes answer what is read, but refuse to write: whoever tries gets the third, and gives it back.
func TestWaitersForNodesThatRefuseToWriteDoNotWakeThemselves(t *testing.T) {
	s := newSite(t, 3)
	for _, srv := range s.servers[1:] {
		must(t, srv.Client().ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	}
	m := s.manager(t, redlock.Config{})
	w := m.Watch("k")
	defer w.Close()
	patient := func() bool {
		begin := time.Now()
		must(t, w.Wait(t.Context(), 300*time.Millisecond))
		return time.Since(begin) >= 300*time.Millisecond
	}
	for !patient() { // not subscribed everywhere yet
	}
	for range 3 {
		if err := m.NewLock("k", redlock.WithAttempts(1)).TryLock(t.Context()); !errors.Is(err, redlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		if !patient() {
			t.Error("woken for nothing")
		}
	}
}
