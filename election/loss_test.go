package election

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestDeletedLeaseEndsTheTerm(t *testing.T) {
	for name, deletes := range map[string]func(*testing.T, *candidate) error{
		"key deleted":   func(t *testing.T, c *candidate) error { return c.link.Client(t).Del(t.Context(), leaseKey).Err() },
		"all data lost": func(t *testing.T, c *candidate) error { return c.link.Client(t).FlushAll(t.Context()).Err() },
		"taken by a replica": func(t *testing.T, c *candidate) error {
			return c.link.Client(t).Set(t.Context(), leaseKey, "x", time.Second).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, _ := bubble.Redis(t)
				h := newHistory()
				var cause error
				a := newCandidate(t, h, server, "a", func(c *Config) {
					c.Callbacks.OnStartedLeading = func(ctx context.Context) {
						<-ctx.Done()
						cause = context.Cause(ctx)
					}
				}).run()
				time.Sleep(5 * time.Second)
				if err := deletes(t, a); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				if stopped := h.of("a", "stopped"); len(stopped) != 1 {
					t.Fatalf("no loss within RetryPeriod: %v", h)
				}
				if !errors.Is(cause, ErrLost) || !errors.Is(cause, redlock.ErrLockLost) {
					t.Errorf("the work was told %v", cause)
				}
				time.Sleep(2 * time.Second)
				started := h.of("a", "started")
				if len(started) != 2 || started[1].epoch != 2 || a.Epoch() != 2 {
					t.Errorf("the next term does not have the next epoch: %v", h)
				}
			})
		})
	}
}

func TestOutageLongerThanRenewDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(10*time.Second + 500*time.Millisecond)

		outage := time.Since(h.start)
		a.link.Cut()
		b.link.Cut()
		time.Sleep(15 * time.Second)
		stopped := h.of("a", "stopped")
		if len(stopped) != 1 || stopped[0].at-outage > 10*time.Second {
			t.Fatalf("a was not told by RenewDeadline: %v", h)
		}
		time.Sleep(time.Minute)
		if l := leaders(a, b); len(l) != 0 {
			t.Fatalf("%v lead without Redis", l)
		}
		a.link.Mend()
		b.link.Mend()
		time.Sleep(3 * time.Second)
		if l := leaders(a, b); len(l) != 1 {
			t.Fatalf("%v lead after the outage: %v", l, h)
		}
		if e := max(a.Epoch(), b.Epoch()); e != 2 {
			t.Errorf("the epoch after the outage is %d, want 2", e)
		}
	})
}

func TestBlipIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		for range 10 {
			time.Sleep(9 * time.Second)
			a.link.Cut()
			time.Sleep(7 * time.Second)
			a.link.Mend()
		}
		if len(h.of("a", "stopped")) != 0 || !a.IsLeader() {
			t.Fatalf("a lost its lease: %v", h)
		}
	})
}

func TestEpochGrowsWhenRedisComesBackEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		server.Set("{ns/name}:epoch", "41")
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run() // has seen epoch 42, but never led
		time.Sleep(5 * time.Second)
		a.link.Cut()
		time.Sleep(time.Second)
		server.FlushAll()
		time.Sleep(20 * time.Second)
		if !b.IsLeader() || b.Epoch() != 43 {
			t.Fatalf("b leads: %v, under epoch %d, want 43", b.IsLeader(), b.Epoch())
		}
	})
}

func TestFenceFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		var floor atomic.Uint64
		broken := errors.New("the database does not answer")
		a := newCandidate(t, h, server, "a", func(c *Config) {
			c.FenceFloor = func(ctx context.Context) (uint64, error) {
				if _, ok := ctx.Deadline(); !ok {
					t.Error("the floor is asked for without a bound")
				}
				if floor.Load() == 0 {
					return 0, broken
				}
				return floor.Load(), nil
			}
		}).run()
		time.Sleep(10 * time.Second)
		if a.IsLeader() || server.Exists(leaseKey) {
			t.Fatal("a leads without knowing the floor")
		}
		floor.Store(1000)
		time.Sleep(3 * time.Second)
		if a.Epoch() != 1001 {
			t.Fatalf("the epoch is %d, want 1001", a.Epoch())
		}
	})
}
