package election

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestStepDownHandsOverAndStaysOutForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		var cause error
		a := newCandidate(t, h, server, "a", func(c *Config) {
			c.ReleaseOnCancel = false // no matter
			c.Callbacks.OnStartedLeading = func(ctx context.Context) {
				<-ctx.Done()
				cause = context.Cause(ctx)
				time.Sleep(time.Second)
			}
		}).run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(time.Second)

		if err := b.StepDown(t.Context()); !errors.Is(err, ErrNotLeading) {
			t.Errorf("StepDown of a follower: %v", err)
		}
		begin := time.Now()
		if err := a.StepDown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < time.Second || d > 1100*time.Millisecond {
			t.Errorf("StepDown took %v, the work another second", d)
		}
		synctest.Wait()
		if !errors.Is(cause, ErrSteppedDown) || !b.IsLeader() {
			t.Fatalf("the work was told %v, b leads: %v", cause, b.IsLeader())
		}
		b.end()
		time.Sleep(900 * time.Millisecond)
		if a.IsLeader() {
			t.Error("a did not stay out for a RetryPeriod")
		}
		time.Sleep(1200 * time.Millisecond)
		if !a.IsLeader() || a.Epoch() != 3 {
			t.Errorf("a does not take part again: %v", h)
		}
	})
}

func TestStepDownWithAContextThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a", func(c *Config) {
			c.Callbacks.OnStartedLeading = func(ctx context.Context) {
				<-ctx.Done()
				time.Sleep(time.Minute)
			}
		}).run()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.StepDown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("StepDown: %v", err)
		}
		a.link.Cut()
		if err := a.StepDown(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("StepDown of a term that is lost: %v", err)
		}
	})
}

func TestSlowOnNewLeaderDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		release := make(chan struct{})
		slow := func(c *Config) { c.Callbacks.OnNewLeader = func(string) { <-release } }
		a := newCandidate(t, h, server, "a", slow).run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b", slow).run()
		time.Sleep(time.Minute)
		if !a.IsLeader() || len(h.of("", "started")) != 1 {
			t.Fatalf("a was not renewed: %v", h)
		}
		a.stop(nil)
		synctest.Wait()
		if !b.IsLeader() {
			t.Fatalf("b was delayed: %v", h)
		}
		begin := time.Now()
		a.end()
		b.end()
		if d := time.Since(begin); d > 4*time.Second {
			t.Errorf("the end took %v, two RetryPeriods at most were granted", d)
		}
		close(release)
	})
}

func TestNewLeadersAreToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		tells := func(c *Config) {
			name := c.Identity
			c.Callbacks.OnNewLeader = func(leader string) {
				time.Sleep(time.Second)
				h.add(name, leader, 0)
			}
		}
		var all []*candidate
		for _, name := range []string{"a", "b", "c"} {
			all = append(all, newCandidate(t, h, server, name, tells).run())
		}
		var led []string
		for range 10 {
			time.Sleep(5 * time.Second)
			who := leaders(all...)
			if len(who) != 1 {
				t.Fatalf("%v lead: %v", who, h)
			}
			led = append(led, who[0])
			if err := all[who[0][0]-'a'].StepDown(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range all {
			c.end()
			var told []string
			for _, e := range h.of(c.name, "") {
				if len(e.what) == 1 {
					told = append(told, e.what)
				}
			}
			if len(told) < len(led) || !slices.Equal(told[:len(led)], led) {
				t.Errorf("%s was told %v, and %v led", c.name, told, led)
			}
		}
	})
}

func TestHeraldLeavesOutTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		release := make(chan struct{})
		h := herald{tell: func(id string) {
			<-release
			told = append(told, id)
		}}
		h.announce("first")
		synctest.Wait()
		for i := range 2 * maxUntold {
			h.announce(string(rune('a' + i%2)))
			h.announce("first")
		}
		close(release)
		h.rest(time.Second)
		if len(told) > maxUntold+1 || len(told) < maxUntold {
			t.Errorf("%d told", len(told))
		}
		for i := range told[1:] {
			if told[i] == told[i+1] {
				t.Fatalf("told twice in a row: %v", told)
			}
		}
	})
}

func TestRunReturnsWhenTheManagerIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(time.Second)
		_ = a.m.Close()
		_ = b.m.Close()
		<-b.done
		<-a.done
		if !errors.Is(a.err, redlock.ErrClosed) || !errors.Is(b.err, redlock.ErrClosed) {
			t.Errorf("Run returned %v and %v", a.err, b.err)
		}
		if len(h.of("a", "stopped")) != 1 {
			t.Errorf("a was not told: %v", h)
		}
	})
}

func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		synctest.Wait()
		if err := a.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "running") {
			t.Errorf("a second Run at the same time: %v", err)
		}
		a.end()
		a.run()
		synctest.Wait()
		if !a.IsLeader() || a.Epoch() != 2 {
			t.Errorf("a second Run after the first: %v", h)
		}
	})
}

// Followers that cannot subscribe notice a release within RetryPeriod, and the end of the TTL when it comes.
func TestWithoutSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b")
		m, err := redlock.NewSingle(struct{ redlock.Node }{b.link.Client(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		b.cfg.Manager = m
		defer b.end()
		b.run()
		time.Sleep(10 * time.Second)
		a.end()
		time.Sleep(2 * time.Second)
		if !b.IsLeader() {
			t.Fatalf("b did not notice the release within RetryPeriod: %v", h)
		}
	})
}

func TestAPanicEndsTheTerm(t *testing.T) {
	// What happens to the process is HandleCrash's; a test can only see that it is asked.
	restore := crashQuietly(t)
	defer restore()
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a", func(c *Config) {
			c.Callbacks = leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { panic("started") },
				OnStoppedLeading: func() { panic("stopped") },
				OnNewLeader:      func(string) { panic("new leader") },
			}
		}).run()
		time.Sleep(time.Second)
		a.end()
	})
	if got := crashes(); !slices.Equal(got, []string{"new leader", "started", "stopped"}) {
		t.Errorf("HandleCrash saw %v", got)
	}
}
