package resourcelock_test

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

func TestFastHandoverIsAtOnce(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		a := newCandidate(t, s.manager(t), "a", fast).run(t)
		time.Sleep(time.Second)
		b := newCandidate(t, s.manager(t), "b", fast).run(t)
		time.Sleep(2*retryPeriod + leaseDuration) // b waits in Get; a has renewed a few times
		if b.elector.GetLeader() != "a" {
			t.Fatalf("b sees %q", b.elector.GetLeader())
		}
		start := time.Now()
		a.stop()
		<-a.done
		for len(b.epochs()) == 0 {
			time.Sleep(time.Millisecond)
		}
		if d := time.Since(start); d > 30*time.Millisecond {
			t.Fatalf("b took over after %v", d)
		}
	})
}

// crashed holds the lease as somebody who is no more.
func crashed(t *testing.T, s servers, name string) {
	t.Helper()
	m := s.manager(t)
	lock := newCandidate(t, m, name).lock
	if err := lock.Create(t.Context(), recordOf(lock, leaseDuration)); err != nil {
		t.Fatal(err)
	}
	_ = m.Close() // its leases are left to expire
}

// After a crash one follower leads at the TTL's end, and the others learn who does.
func TestFastHandoverAfterACrash(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		crashed(t, s, "crashed")
		start := time.Now()
		var cs []*candidate
		for _, name := range []string{"a", "b", "c"} {
			cs = append(cs, newCandidate(t, s.manager(t), name, fast).run(t))
			time.Sleep(300 * time.Millisecond)
		}
		led := func(c *candidate) bool { return len(c.epochs()) > 0 }
		for !slices.ContainsFunc(cs, led) {
			time.Sleep(time.Millisecond)
			if time.Since(start) > leaseDuration+3*retryPeriod {
				t.Fatal("nobody leads after the TTL")
			}
		}
		d := time.Since(start)
		if d < leaseDuration-time.Second || len(s) == 1 && d > leaseDuration+50*time.Millisecond {
			t.Errorf("the first took over after %v", d)
		}
		time.Sleep(3 * retryPeriod)
		leader := theLeader(t, cs...)
		for _, c := range cs {
			if got := c.elector.GetLeader(); got != leader.name {
				t.Errorf("%s believes in %q, and %s leads", c.name, got, leader.name)
			}
		}
	})
}

// The first report of a leader is not delayed, with FastHandover or without.
func TestTheFirstReportIsAtOnce(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		newCandidate(t, s.manager(t), "a").run(t)
		time.Sleep(time.Second)
		b := newCandidate(t, s.manager(t), "b", fast).run(t)
		time.Sleep(10 * time.Millisecond)
		b.mu.Lock()
		defer b.mu.Unlock()
		if !slices.Equal(b.leaders, []string{"a"}) {
			t.Errorf("b was told of %q", b.leaders)
		}
	})
}

// The lease was deleted and taken by another: a waiting follower hears of it, if only after some minutes.
func TestAWaitingFollowerLearnsOfATakeoverThatNobodyAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 1)
		m := s.manager(t)
		a := newCandidate(t, m, "a", fast).run(t)
		time.Sleep(time.Second)
		f := newCandidate(t, s.manager(t), "f", fast).run(t)
		time.Sleep(3 * retryPeriod)
		s.deleteLease()
		newCandidate(t, s.manager(t), "b").run(t)
		time.Sleep(6 * time.Minute)
		if got := f.elector.GetLeader(); got != "b" {
			t.Errorf("the follower believes in %q; a was told to stop: %v", got, a.ended())
		}
	})
}

// Where subscriptions are not allowed a follower looks as often as client-go would.
func TestAFollowerPollsWhereReleasesCannotBeHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 1)
		holder := s.manager(t).NewLock("{ns/name}:lease", redlock.WithExpiry(time.Hour))
		if err := holder.TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		var looks atomic.Int32
		s[0].Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			if strings.EqualFold(cmd, "SUBSCRIBE") {
				c.WriteError("NOPERM this user has no permissions to access one of the channels used as arguments")
				return true
			}
			if strings.EqualFold(cmd, "EVALSHA") {
				looks.Add(1)
			}
			return false
		})
		follower := newCandidate(t, s.manager(t), "f", fast, func(cfg *resourcelock.Config, _ *leaderelection.LeaderElectionConfig) {
			cfg.LeaseDuration = leaseDuration
		}).run(t)
		time.Sleep(10 * time.Second)
		looks.Store(0)
		time.Sleep(time.Minute)
		if most := int(time.Minute/(leaseDuration/8)) + 1; int(looks.Load()) > most {
			t.Errorf("%d looks in a minute, want %d at most", looks.Load(), most)
		}
		if err := holder.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * retryPeriod)
		if !follower.elector.IsLeader() {
			t.Error("the release was not noticed")
		}
	})
}

// In the ordinary life of a lease, with a handover and a crash in it, client-go logs no more errors than one for
// each candidate that was not the first.
func TestFollowersDoNotLogErrors(t *testing.T) {
	for _, mode := range []option{fast, func(*resourcelock.Config, *leaderelection.LeaderElectionConfig) {}} {
		inBoth(t, func(t *testing.T, s servers) {
			var mu sync.Mutex
			var errs []string
			ctx := klog.NewContext(t.Context(), funcr.New(func(_, line string) {
				mu.Lock()
				defer mu.Unlock()
				if strings.Contains(line, `"error"=`) {
					errs = append(errs, line)
				}
			}, funcr.Options{}))
			crashed(t, s, "crashed")
			var cs []*candidate
			for _, name := range []string{"a", "b", "c"} {
				cs = append(cs, newCandidate(t, s.manager(t), name, mode).runIn(t, ctx))
			}
			time.Sleep(time.Minute)
			theLeader(t, cs...).stop()
			time.Sleep(time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if len(errs) > 4 {
				t.Errorf("%d errors:\n%s", len(errs), strings.Join(errs, "\n"))
			}
		})
	}
}

// Redis is silent while a follower waits: it says so once a RetryPeriod at most, and waits again afterwards.
func TestAWaitingFollowerSurvivesAnOutage(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		newCandidate(t, s.manager(t), "a", fast).run(t)
		time.Sleep(time.Second)
		m, network := s.remote(t)
		ops := new(opsLock)
		b := newCandidate(t, m, "b", fast, ops.record).run(t)
		time.Sleep(3 * retryPeriod)
		network.each((*bubble.Link).Silence)
		start := time.Now()
		time.Sleep(time.Minute)
		if n := len(ops.since(start)); n > int(time.Minute/retryPeriod)+1 {
			t.Errorf("%d calls in a minute of silence", n)
		}
		network.mend()
		time.Sleep(3 * retryPeriod)
		if got := b.elector.GetLeader(); got != "a" {
			t.Errorf("b sees %q", got)
		}
	})
}

// A follower that waits ends with its context at once.
func TestAWaitingFollowerStops(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		newCandidate(t, s.manager(t), "a", fast).run(t)
		time.Sleep(time.Second)
		b := newCandidate(t, s.manager(t), "b", fast).run(t)
		time.Sleep(4 * retryPeriod)
		start := time.Now()
		b.stop()
		<-b.done
		if d := time.Since(start); d > 0 {
			t.Errorf("it took %v", d)
		}
	})
}
