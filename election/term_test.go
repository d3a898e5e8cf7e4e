package election

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ndyakov/go-redlock/internal/bubble"
)

func TestGracefulReleaseHandsOverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(time.Minute)
		if !a.IsLeader() || b.IsLeader() || a.Epoch() != 1 {
			t.Fatalf("a does not lead: %v", h)
		}
		if id, epoch := b.Leader(); id != "a" || epoch != 1 {
			t.Fatalf("b believes %q leads under %d", id, epoch)
		}

		stopped := time.Since(h.start)
		a.end()
		synctest.Wait()
		if !b.IsLeader() || a.IsLeader() || b.Epoch() != 2 {
			t.Fatalf("b did not take over: %v", h)
		}
		if started := h.of("b", "started"); started[0].at-stopped > 5*time.Millisecond || started[0].epoch != 2 {
			t.Errorf("b started at %v, a was stopped at %v", started, stopped)
		}
		if l, ok := readRecord(t, b.m); !ok || l.Identity != "b" || l.Transitions != 1 || l.Epoch != 2 {
			t.Errorf("the record says %+v", l)
		}
		b.end()
		if server.Exists(leaseKey) {
			t.Error("a key is left")
		}
	})
}

func TestCrashIsTakenOverAtTheEndOfTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(10 * time.Second)

		a.link.Silence()
		ttl := server.TTL(leaseKey)
		time.Sleep(ttl - time.Millisecond)
		if b.IsLeader() || a.IsLeader() {
			t.Fatalf("before the TTL is over a leads: %v, b leads: %v", a.IsLeader(), b.IsLeader())
		}
		time.Sleep(21 * time.Millisecond)
		if !b.IsLeader() {
			t.Fatalf("b does not lead 20ms after the end of the TTL: %v", h)
		}
		if c := h.of("a", "stopped"); len(c) != 1 || c[0].at >= h.of("b", "started")[0].at {
			t.Errorf("a was not told before b led: %v", h)
		}
	})
}

func TestWorkThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		release := make(chan struct{})
		a := newCandidate(t, h, server, "a", func(c *Config) {
			c.Callbacks.OnStartedLeading = func(context.Context) { <-release }
		}).run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(time.Second)
		a.link.Cut()
		time.Sleep(16 * time.Second)
		if len(h.of("a", "stopped")) != 1 || !b.IsLeader() {
			t.Fatalf("b cannot lead: %v", h)
		}
		a.link.Mend()
		b.end()
		time.Sleep(time.Minute)
		if server.Exists(leaseKey) || len(h.of("a", "started")) != 1 {
			t.Fatalf("a took part although its work was not over: %v", h)
		}
		if err := a.Check(nil); err == nil {
			t.Error("work that has gone on for a minute too long is healthy")
		}
		if id, _ := a.Leader(); id != "" {
			t.Errorf("a believes that %q leads", id)
		}
		close(release)
		time.Sleep(50 * time.Millisecond)
		if !a.IsLeader() || a.Epoch() != 3 || a.Check(nil) != nil {
			t.Fatalf("a does not lead again, or is unhealthy: %v", h)
		}
	})
}

func TestStopKeepsTheLeaseUntilTheWorkIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		why := errors.New("the node is drained")
		a := newCandidate(t, h, server, "a", func(c *Config) {
			c.Callbacks.OnStartedLeading = func(ctx context.Context) {
				<-ctx.Done()
				if cause := context.Cause(ctx); !errors.Is(cause, ErrStopping) || !errors.Is(cause, why) {
					t.Errorf("the work was told %v", cause)
				}
				time.Sleep(time.Minute) // four times the TTL
			}
		}).run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(time.Second)
		a.stop(why)
		time.Sleep(59 * time.Second)
		if !a.IsLeader() || b.IsLeader() || a.Epoch() != 1 {
			t.Fatalf("the lease was not kept: %v", h)
		}
		time.Sleep(time.Second + 5*time.Millisecond)
		if !b.IsLeader() || b.Epoch() != 2 {
			t.Fatalf("b does not lead: %v", h)
		}
		var order []string
		for _, what := range []string{"returned", "stopped"} {
			if h.of("a", what)[0].at > h.of("b", "started")[0].at {
				t.Errorf("a had not %s when b started: %v", what, h)
			}
			order = append(order, what)
		}
		if !slices.IsSortedFunc(order, func(x, y string) int { return int(h.of("a", x)[0].at - h.of("a", y)[0].at) }) {
			t.Errorf("the order is wrong: %v", h)
		}
	})
}

func TestStopWhileRedisIsAwayIsBoundedByTheLease(t *testing.T) {
	for name, sever := range map[string]func(*bubble.Link){"cut": (*bubble.Link).Cut, "silent": (*bubble.Link).Silence} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, _ := bubble.Redis(t)
				h := newHistory()
				a := newCandidate(t, h, server, "a", func(c *Config) {
					c.Callbacks.OnStartedLeading = func(ctx context.Context) {
						<-ctx.Done()
						time.Sleep(time.Minute)
					}
				}).run()
				time.Sleep(5 * time.Second)
				sever(a.link)
				a.stop(nil)
				time.Sleep(10 * time.Second)
				if len(h.of("a", "stopped")) != 1 || a.IsLeader() {
					t.Fatalf("the loss was not told: %v", h)
				}
				<-a.done
				if returned := h.of("a", "returned"); len(returned) != 1 {
					t.Fatalf("Run returned before its work: %v", h)
				}
			})
		})
	}
}

// A server that hangs during the release, after the work has ended, delays the end by one operation.
func TestReleaseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(5 * time.Second)
		a.link.Silence()
		begin := time.Now()
		a.end()
		if d := time.Since(begin); d > time.Second || a.err != nil {
			t.Fatalf("Run took %v to return %v", d, a.err)
		}
		if len(h.of("a", "stopped")) != 1 {
			t.Errorf("%v", h)
		}
	})
}

func TestWithoutReleaseOnCancelTheLeaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a", func(c *Config) { c.ReleaseOnCancel = false }).run()
		time.Sleep(5 * time.Second)
		a.end()
		if !server.Exists(leaseKey) || a.IsLeader() || len(h.of("a", "stopped")) != 1 {
			t.Fatalf("the lease was released, or a still leads: %v", h)
		}
		time.Sleep(15 * time.Second)
		if server.Exists(leaseKey) {
			t.Error("the lease is still renewed")
		}
	})
}

func TestNoTermNoCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(time.Minute)
		b.end()
		if b.err != nil || len(h.of("b", "stopped"))+len(h.of("b", "started")) != 0 {
			t.Errorf("Run returned %v: %v", b.err, h)
		}
		a.end()

		// The acquisition is under way, and its reply never comes.
		c := newCandidate(t, h, server, "c")
		c.link.Silence()
		c.run()
		time.Sleep(10 * time.Millisecond)
		c.end()
		c.link.Mend()
		time.Sleep(time.Second)
		if server.Exists(leaseKey) || len(h.of("c", "stopped")) != 0 {
			t.Errorf("a key is left, or a term that never was has ended: %v", h)
		}
	})
}

// As when a Pod of a StatefulSet is restarted before its old lease has expired.
func TestRecordOfAnEarlierProcessIsSomebodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		before := newCandidate(t, h, server, "pod-0").run()
		time.Sleep(5 * time.Second)
		before.link.Silence() // it crashes
		after := newCandidate(t, h, server, "pod-0").run()
		ttl := server.TTL(leaseKey)
		time.Sleep(ttl - time.Millisecond)
		if after.IsLeader() || after.Epoch() != 0 {
			t.Fatal("it believes in a name")
		}
		if id, epoch := after.Leader(); id != "pod-0" || epoch != 1 {
			t.Errorf("the leader is %q under %d", id, epoch)
		}
		time.Sleep(21 * time.Millisecond)
		if !after.IsLeader() || after.Epoch() != 2 {
			t.Fatalf("it does not lead after its turn has come: %v", h)
		}
	})
}

// Another led and released while the leader was cut off: it does not go on as if nothing had happened.
func TestNoTermUnderTwoEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(5 * time.Second)
		a.link.Cut()
		server.Del(leaseKey)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(time.Second)
		b.end()
		a.link.Mend()
		time.Sleep(5 * time.Second)
		started := h.of("a", "started")
		if len(started) != 2 || started[0].epoch != 1 || started[1].epoch != 3 {
			t.Fatalf("want terms 1 and 3: %v", h)
		}
		if stopped := h.of("a", "stopped"); len(stopped) != 1 || stopped[0].at > started[1].at {
			t.Fatalf("a led again without having been stopped: %v", h)
		}
	})
}

func TestLeaseDurationsThatAreNotWholeSeconds(t *testing.T) {
	for _, d := range []time.Duration{50 * time.Millisecond, 900 * time.Millisecond, 1900 * time.Millisecond} {
		t.Run(d.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, _ := bubble.Redis(t)
				h := newHistory()
				short := func(c *Config) {
					c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = d, d-time.Millisecond, d/2
				}
				a := newCandidate(t, h, server, "a", short).run()
				time.Sleep(time.Millisecond)
				newCandidate(t, h, server, "b", short).run()
				time.Sleep(100 * d)
				if !a.IsLeader() || len(h.of("", "started")) != 1 {
					t.Fatalf("a healthy leader was taken over: %v", h)
				}
			})
		})
	}
}
