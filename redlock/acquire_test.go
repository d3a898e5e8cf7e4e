package redlock_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// readTimeouts are those that clients come with: none, go-redis's own, and a sensible one.
var readTimeouts = map[string]time.Duration{"no read timeout": -1, "default read timeout": 0, "short read timeout": 100 * time.Millisecond}

func withReadTimeout(d time.Duration) func(*redis.Options) {
	return func(o *redis.Options) { o.ReadTimeout = d }
}

func TestSilentNodeDoesNotDelayAcquisition(t *testing.T) {
	for name, timeout := range readTimeouts {
		t.Run(name, func(t *testing.T) {
			// Given three servers of which one accepts connections and never answers, new ones or old ones,
			s := newSite(t, 3)
			m := s.manager(t, redlock.Config{OperationTimeout: 500 * time.Millisecond, Expiry: 5 * time.Second}, withReadTimeout(timeout))
			for i := range s.proxies {
				s.proxies[i].Hold(redistest.Both)
				var times []time.Duration
				var locks []*redlock.Lock
				for range 5 {
					l := m.NewLock(redistest.Key(t))
					// when a lease is acquired,
					begin := time.Now()
					must(t, l.TryLock(t.Context()))
					times, locks = append(times, time.Since(begin)), append(locks, l)
				}
				// then it is so at once.
				wantAtOnce(t, times)
				s.proxies[i].Release(redistest.Both)
				for _, l := range locks {
					_ = l.Unlock(t.Context())
					s.wantFree(t, l.Key(), time.Second)
				}
			}
		})
	}
}

// wantAtOnce fails the test unless acquisitions took less than 50ms, and far less than the OperationTimeout when others
// kept the machine busy.
func wantAtOnce(t *testing.T, times []time.Duration) {
	t.Helper()
	slices.Sort(times)
	if median, longest := times[len(times)/2], times[len(times)-1]; median > 50*time.Millisecond || longest > 300*time.Millisecond {
		t.Errorf("an acquisition took %v, the longest %v", median, longest)
	}
}

// The SET that waited on the way belongs to the lease that is held by then.
func TestSetThatReachesASilentNodeLateIsAdoptedByTheLease(t *testing.T) {
	// Given a lease whose SET has not reached one of the servers,
	s := newSite(t, 3)
	m := s.manager(t, redlock.Config{OperationTimeout: 100 * time.Millisecond})
	s.proxies[2].Hold(redistest.ToServer)
	l := m.NewLock(redistest.Key(t))
	must(t, l.TryLock(t.Context()))
	eventually(t, time.Second, "the SET is on its way", func() bool { return s.proxies[2].Held(redistest.ToServer) > 0 })
	// when it arrives,
	s.proxies[2].Release(redistest.Both)
	eventually(t, time.Second, "the SET has arrived", func() bool { return s.at(t, 2, l.Key()) != "" })
	// then it stays, is part of the lease, and goes with it.
	time.Sleep(200 * time.Millisecond)
	if s.at(t, 2, l.Key()) != s.at(t, 0, l.Key()) {
		t.Fatal("what arrived late is not the lease's")
	}
	must(t, l.Unlock(t.Context()))
	s.wantFree(t, l.Key(), time.Second)
}

func TestAcquisitionsWithASilentNodeLeaveNoGoroutines(t *testing.T) {
	for name, timeout := range readTimeouts {
		t.Run(name, func(t *testing.T) {
			// Given a silent node,
			servers := redistest.StartN(t, 3)
			var nodes []redlock.Node
			for _, s := range servers {
				nodes = append(nodes, dial(t, s.Addr(), withReadTimeout(timeout)))
			}
			m := manager(t, nodes, redlock.Config{OperationTimeout: 500 * time.Millisecond})
			servers[1].Stop()
			key := redistest.Key(t)
			// when a hundred leases are acquired,
			before := runtime.NumGoroutine()
			var times []time.Duration
			for range 100 {
				key += "x"
				begin := time.Now()
				must(t, m.NewLock(key).TryLock(t.Context()))
				times = append(times, time.Since(begin))
			}
			wantAtOnce(t, times)
			// then no more than one command for each waits right after,
			after := runtime.NumGoroutine()
			if after > before+110 {
				t.Errorf("%d goroutines before, %d right after", before, after)
			}
			// and soon none does, but for those in a client that waits for as long as it takes: these have a few places.
			allowed := before + 2
			if timeout != 100*time.Millisecond {
				allowed += 32
			}
			eventually(t, 2*time.Second, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= allowed })
			t.Logf("goroutines: %d before, %d right after, %d later", before, after, runtime.NumGoroutine())
			servers[1].Continue()
			eventually(t, 2*time.Second, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
		})
	}
}

func TestSilentMajorityIsNotContention(t *testing.T) {
	// Given three servers of which two do not answer,
	s := newSite(t, 3)
	const ot = 200 * time.Millisecond
	m := s.manager(t, redlock.Config{OperationTimeout: ot, Attempts: 1})
	s.proxies[0].Hold(redistest.Both)
	s.proxies[2].Hold(redistest.Both)
	l := m.NewLock(redistest.Key(t))
	// when a lease is asked for,
	begin := time.Now()
	err := l.TryLock(t.Context())
	// then that fails in time, and for the right reason.
	if d := time.Since(begin); d < ot || d > ot+200*time.Millisecond {
		t.Errorf("TryLock took %v", d)
	}
	wantIs(t, err, redlock.ErrNotAcquired)
	q := quorumError(t, err)
	if q.Succeeded != 1 || q.Required != 2 || len(q.NodeErrors) != 2 || q.NodeErrors[0] == nil || q.NodeErrors[2] == nil {
		t.Errorf("error is %#v", q)
	}
	if text := err.Error(); !strings.Contains(text, "did not answer") || strings.Contains(text, "held by") {
		t.Errorf("error is %q", text)
	}
	if l.Held() || isLost(l) {
		t.Error("a lease that was never acquired is held, or lost")
	}
	// And when they come back nothing of it remains.
	s.proxies[0].Release(redistest.Both)
	s.proxies[2].Release(redistest.Both)
	s.wantFree(t, l.Key(), 2*ot)
}

// The SET waits on its connection; the release, on another one, does not.
func TestLateSetLeavesNoOwnerlessKey(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		const ot = 100 * time.Millisecond
		m := s.manager(t, redlock.Config{OperationTimeout: ot, Attempts: 1, Expiry: 20 * time.Second})
		key := redistest.Key(t)
		for _, p := range s.proxies[len(s.proxies)/2:] { // a majority
			p.HoldMatching(redistest.ToServer, "nx\r\n")
			p.HoldMatching(redistest.ToServer, "NX\r\n")
		}
		begin := time.Now()
		if err := m.NewLock(key).TryLock(t.Context()); !errors.Is(err, redlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 2*ot+200*time.Millisecond {
			t.Errorf("TryLock took %v", d)
		}
		s.wantFree(t, key, ot)
		for _, p := range s.proxies {
			p.Release(redistest.Both)
		}
		time.Sleep(5 * ot) // they arrive, and are found
		s.wantFree(t, key, ot)
	})
}

func TestCallerGivesUp(t *testing.T) {
	for name, dir := range map[string]redistest.Direction{"before the SET arrived": redistest.ToServer, "before the reply came": redistest.ToClient} {
		t.Run(name, func(t *testing.T) {
			really(t, func(t *testing.T, s *site) {
				// Given acquisitions that are under way,
				const ot = 400 * time.Millisecond
				m := s.manager(t, redlock.Config{OperationTimeout: ot})
				for _, p := range s.proxies {
					p.Hold(dir)
				}
				l := m.NewLock(redistest.Key(t))
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				// when the caller's time is over,
				begin := time.Now()
				err := l.TryLock(ctx)
				// then the call returns at once and says so,
				if d := time.Since(begin); d > ot/2 {
					t.Errorf("TryLock took %v", d)
				}
				wantIs(t, err, context.DeadlineExceeded)
				if l.Held() {
					t.Error("it is held nevertheless")
				}
				// and no key stays.
				for _, p := range s.proxies {
					p.Release(redistest.Both)
				}
				s.wantFree(t, l.Key(), 2*ot)
			})
		})
	}
}

func TestContextThatHasEndedSendsNothing(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		l := w.party(t, redlock.Config{}).NewLock("k")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantIs(t, l.TryLock(ctx), context.Canceled)
		wantIs(t, l.Lock(ctx), context.Canceled)
		for _, s := range w {
			if n := s.TotalConnectionCount(); n != 1 { // the first started the server
				t.Errorf("there were %d connections", n)
			}
		}
	})
}

// With a client that repeats commands: the first SET was executed, its reply lost.
func TestLostReplyOfSetIsNotContention(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		for name, wrap := range map[string]func(redlock.Node) redlock.Node{
			"client":     func(n redlock.Node) redlock.Node { return n },
			"plain node": func(n redlock.Node) redlock.Node { return struct{ redlock.Node }{n} },
		} {
			t.Run(name, func(t *testing.T) {
				nodes := s.clients(t, func(o *redis.Options) { o.MaxRetries = 3 })
				for i := range nodes {
					nodes[i] = wrap(nodes[i])
				}
				const ot = 100 * time.Millisecond
				m := manager(t, nodes, redlock.Config{Attempts: 1, OperationTimeout: ot})
				key := redistest.Key(t)
				for _, p := range s.proxies {
					p.CutOnReply(key)
				}
				l := m.NewLock(key)
				err := l.TryLock(t.Context())
				switch {
				case err == nil:
					must(t, l.Unlock(t.Context()))
				case strings.Contains(err.Error(), "held by somebody else"):
					t.Errorf("error is %q, but the lease was free", err)
				default:
					wantIs(t, err, redlock.ErrNotAcquired)
				}
				if name == "plain node" {
					time.Sleep(3 * ot) // its client may have repeated the SET after the release, which is then looked for again
				}
				s.wantFree(t, key, ot)
			})
		}
	})
}

func TestNextAttemptSucceedsAfterALostReply(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		m := s.manager(t, redlock.Config{RetryDelay: 10 * time.Millisecond}, func(o *redis.Options) { o.MaxRetries = 3 })
		key := redistest.Key(t)
		for _, p := range s.proxies {
			p.CutOnReply(key)
		}
		l := m.NewLock(key)
		must(t, l.TryLock(t.Context()))
		must(t, l.Unlock(t.Context()))
		s.wantFree(t, key, time.Second)
	})
}

func TestOwnKeyFromAttemptOneDoesNotBlockAttemptTwo(t *testing.T) {
	// Given that only one server is reachable at first, and its reply to the SET is lost,
	s := newSite(t, 3)
	m := s.manager(t, redlock.Config{Attempts: 2, RetryDelay: 200 * time.Millisecond, OperationTimeout: 100 * time.Millisecond})
	key := redistest.Key(t)
	s.proxies[0].CutOnReply(key)
	s.proxies[1].Refuse()
	s.proxies[2].Refuse()
	// when another comes back between the attempts,
	async(t, func() {
		time.Sleep(100 * time.Millisecond)
		s.proxies[2].Accept()
	})
	l := m.NewLock(key)
	// then the second one succeeds with both.
	must(t, l.TryLock(t.Context()))
	if a, c := s.at(t, 0, key), s.at(t, 2, key); a == "" || a != c {
		t.Error("the lease does not stand on servers 0 and 2")
	}
}

func TestContendedIsNotUnreachable(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		holder := w.party(t, redlock.Config{}).NewLock("k")
		must(t, holder.TryLock(t.Context()))
		synctest.Wait() // for the third node
		p := w.party(t, redlock.Config{Attempts: 1})
		l := p.NewLock("k")
		for i, want := range []bool{true, true, false, false} { // with this many nodes cut off
			if i > 0 {
				p.links[i-1].Silence()
			}
			if q := quorumError(t, l.TryLock(t.Context())); q.Contended() != want {
				t.Errorf("with %d nodes silent contended is %v: %v", i, !want, q)
			}
		}
		w[0].Del("k")
		w[1].Del("k")
		if q := quorumError(t, holder.Extend(t.Context(), time.Second)); q.Contended() {
			t.Errorf("a renewal is contended: %v", q)
		}
	})
}
