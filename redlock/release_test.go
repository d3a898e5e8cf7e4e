package redlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestReleaseWithADeadContextReleases(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		l := s.manager(t, redlock.Config{}).NewLock(redistest.Key(t))
		must(t, l.TryLock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, l.Unlock(ctx))
		s.wantFree(t, l.Key(), time.Second)
		if l.Held() || isLost(l) {
			t.Error("after a clean release the lease is held, or lost")
		}
	})
}

func TestReleaseWithADeadContextIsBounded(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		const ot = 100 * time.Millisecond
		l := s.manager(t, redlock.Config{OperationTimeout: ot}, withReadTimeout(-1)).NewLock(redistest.Key(t))
		must(t, l.TryLock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, p := range s.proxies {
			p.Hold(redistest.Both)
		}
		begin := time.Now()
		err := l.Unlock(ctx)
		if d := time.Since(begin); d > ot+300*time.Millisecond {
			t.Errorf("Unlock took %v", d)
		}
		wantIs(t, err, redlock.ErrLockLost) // nobody confirmed that it was still there
		if l.Held() {
			t.Error("it is still held")
		}
		for _, p := range s.proxies {
			p.Release(redistest.Both)
		}
		s.wantFree(t, l.Key(), 3*ot)
	})
}

func TestReleaseWithOneNodeDown(t *testing.T) {
	for name, fault := range map[string]func(*redistest.Server){"killed": (*redistest.Server).Kill, "stopped": (*redistest.Server).Stop} {
		t.Run(name, func(t *testing.T) {
			// Given a lease of which one server is down,
			s := newSite(t, 3)
			const ot = 200 * time.Millisecond
			l := s.manager(t, redlock.Config{OperationTimeout: ot}).NewLock(redistest.Key(t))
			must(t, l.TryLock(t.Context()))
			fault(s.servers[1])
			// when it is released,
			begin := time.Now()
			err := l.Unlock(t.Context())
			// then the error names that server and is no loss, and the others are free.
			if d := time.Since(begin); d > ot+300*time.Millisecond {
				t.Errorf("Unlock took %v", d)
			}
			q := quorumError(t, err)
			if errors.Is(err, redlock.ErrLockLost) || len(q.NodeErrors) != 1 || q.NodeErrors[1] == nil || q.Succeeded != 2 || q.Required != 2 {
				t.Errorf("error is %v", err)
			}
			if s.at(t, 0, l.Key()) != "" || s.at(t, 2, l.Key()) != "" {
				t.Error("it is not released")
			}
			wantIs(t, l.Unlock(t.Context()), redlock.ErrNotHeld)
			if name == "stopped" { // and when it goes on it is free as well
				s.servers[1].Continue()
				s.wantFree(t, l.Key(), 3*ot)
			}
		})
	}
}

func TestReleaseAfterTheMajorityLostIt(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		l := s.manager(t, redlock.Config{}).NewLock(redistest.Key(t))
		must(t, l.TryLock(t.Context()))
		s.everywhere(t, l.Key())
		for _, srv := range s.servers[:len(s.servers)/2+1] {
			srv.Client().Del(t.Context(), l.Key())
		}
		err := l.Unlock(t.Context())
		wantIs(t, err, redlock.ErrLockLost)
		if q := quorumError(t, err); len(q.NodeErrors) != 0 || q.Succeeded != len(s.servers)/2 || q.Operation != "release" {
			t.Errorf("error is %v", err)
		}
		s.wantFree(t, l.Key(), time.Second) // the minority as well
		wantIs(t, l.Unlock(t.Context()), redlock.ErrNotHeld)
	})
}

// The reply of the release is lost: what a client's repetition would find gone was there.
func TestLostReplyOfTheReleaseIsNoLoss(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		l := s.manager(t, redlock.Config{}, func(o *redis.Options) { o.MaxRetries = 3 }).NewLock(redistest.Key(t))
		for _, part := range []string{"string.sub(held", ":released"} { // the text of the script, and, when it is known, its arguments
			must(t, l.TryLock(t.Context()))
			for _, p := range s.proxies {
				p.CutOnReply(part)
			}
			if err := l.Unlock(t.Context()); errors.Is(err, redlock.ErrLockLost) {
				t.Error(err)
			}
			s.wantFree(t, l.Key(), time.Second)
		}
	})
}

func TestNeverSomebodyElsesLease(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		// Given leases that ended while their holder was cut off, and their successors,
		cfg := redlock.Config{Expiry: 10 * time.Second}
		us, them := w.party(t, cfg), w.party(t, cfg)
		plain := us.NewLock("plain")
		renewed := us.NewLock("renewed", redlock.WithAutoRenew(3*time.Second))
		must(t, plain.TryLock(t.Context()))
		must(t, renewed.TryLock(t.Context()))
		time.Sleep(time.Second)
		us.each(func(l *bubble.Link) { l.Hold(bubble.ToServer) }) // renewals wait on the way
		time.Sleep(10 * time.Second)
		heirs := map[string]*redlock.Lock{}
		for _, key := range []string{"plain", "renewed"} {
			heirs[key] = them.NewLock(key, redlock.WithExpiry(time.Minute))
			must(t, heirs[key].TryLock(t.Context()))
		}
		begin := time.Now()
		// when what was under way arrives, and we extend and release,
		us.each(func(l *bubble.Link) { l.Release(bubble.Both) })
		time.Sleep(3 * time.Second)
		for _, l := range []*redlock.Lock{plain, renewed} {
			wantIs(t, l.Extend(t.Context(), 2*time.Second), redlock.ErrLockLost)
			wantIs(t, l.Unlock(t.Context()), redlock.ErrLockLost)
		}
		// then the successors' keys and TTLs are as they were on every server,
		for key, heir := range heirs {
			for i, s := range w {
				if want := time.Minute - time.Since(begin); s.TTL(key) != want {
					t.Errorf("%q lives for %v on server %d, want %v", key, s.TTL(key), i, want)
				}
			}
			must(t, heir.Unlock(t.Context()))
		}
		// and nothing of ours comes back after their release.
		for range 60 {
			time.Sleep(time.Second)
			w.wantFree(t, "plain")
			w.wantFree(t, "renewed")
		}
	})
}

// A lease is put back on a node that had lost it, but the SET stays on the way until after the end of the lease.
func TestLateHealingLeavesNoOwnerlessKey(t *testing.T) {
	for name, end := range map[string]func(*testing.T, world, *redlock.Lock){
		"released": func(t *testing.T, _ world, l *redlock.Lock) { must(t, l.Unlock(t.Context())) },
		"lost": func(t *testing.T, w world, l *redlock.Lock) {
			w[0].Del("k")
			w[1].Del("k")
			wantIs(t, l.Extend(t.Context(), 20*time.Second), redlock.ErrLockLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 3, func(t *testing.T, w world) {
				p := w.party(t, redlock.Config{Expiry: 20 * time.Second})
				l := p.NewLock("k")
				must(t, l.TryLock(t.Context()))
				must(t, l.Extend(t.Context(), 20*time.Second)) // from now on the script is known
				time.Sleep(time.Second)
				w[2].Del("k")
				p.links[2].Delay(bubble.ToServer, 400*time.Millisecond)
				must(t, l.Extend(t.Context(), 20*time.Second))
				time.Sleep(500 * time.Millisecond) // the renewal found nothing, and a SET is on its way
				p.links[2].Delay(bubble.ToServer, 0)
				var came atomic.Bool
				w[2].Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
					came.Store(came.Load() || cmd == "SET")
					return false
				})
				end(t, w, l)
				time.Sleep(time.Second)
				if !came.Load() {
					t.Fatal("the SET never came: this test proves nothing")
				}
				w.wantFree(t, "k")
			})
		})
	}
}

// A node says that it does not have the lease when that has been released.
func TestNothingIsPutBackAfterTheRelease(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		p := w.party(t, redlock.Config{Expiry: 20 * time.Second})
		l := p.NewLock("k")
		must(t, l.TryLock(t.Context()))
		must(t, l.Extend(t.Context(), 20*time.Second)) // from now on the script is known
		time.Sleep(time.Second)
		w[2].Del("k")
		p.links[2].Delay(bubble.ToClient, 300*time.Millisecond)
		must(t, l.Extend(t.Context(), 20*time.Second))
		time.Sleep(100 * time.Millisecond)
		_ = l.Unlock(t.Context())
		for range 20 {
			time.Sleep(100 * time.Millisecond)
			w.wantFree(t, "k")
		}
	})
}

// However late a SET arrives within the TTL, its key does not stay for as long as a TTL.
func TestOwnerlessKeyOfALateSetIsFoundAndDeleted(t *testing.T) {
	const ttl, ot = 20 * time.Second, 200 * time.Millisecond
	for _, late := range []time.Duration{ot / 2, ot, 2 * ot, time.Second, ttl / 4, ttl / 2, ttl * 9 / 10} {
		t.Run(late.String(), func(t *testing.T) {
			virtual(t, 3, func(t *testing.T, w world) {
				// Given a failed attempt, whose SET is on its way to a node that is reachable otherwise,
				p := w.party(t, redlock.Config{Expiry: ttl, OperationTimeout: ot, Attempts: 1})
				p.links[0].Cut()
				p.links[1].Cut()
				warm := p.NewLock("warm")
				_ = warm.TryLock(t.Context())
				p.links[2].Delay(bubble.ToServer, late)
				wantIs(t, p.NewLock("k").TryLock(t.Context()), redlock.ErrNotAcquired)
				p.links[2].Delay(bubble.ToServer, 0)
				// when it arrives
				begin := time.Now()
				for !w[2].Exists("k") && time.Since(begin) < 2*ttl {
					time.Sleep(ot / 4)
				}
				arrived := time.Now()
				for w[2].Exists("k") {
					time.Sleep(ot / 4)
				}
				// then it is found.
				if d := time.Since(arrived); d > ttl*3/4 {
					t.Errorf("the key stood there for %v", d)
				} else {
					t.Logf("the key stood there for %v", d)
				}
			})
		})
	}
}

// The majority had it, one of them is down, and the SET to the third is still under way: the release waits for that.
func TestReleaseThatOvertakesTheSetIsNoLoss(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		p := w.party(t, redlock.Config{})
		warm := p.NewLock("warm")
		must(t, warm.TryLock(t.Context()))
		synctest.Wait()
		must(t, warm.Unlock(t.Context())) // there are connections, and the scripts are known
		p.links[2].Delay(bubble.ToServer, 100*time.Millisecond)
		l := p.NewLock("k")
		must(t, l.TryLock(t.Context()))
		time.Sleep(10 * time.Millisecond)
		p.links[2].Delay(bubble.ToServer, 0)
		p.links[1].Cut()
		err := l.Unlock(t.Context())
		if q := quorumError(t, err); errors.Is(err, redlock.ErrLockLost) || q.Succeeded != 2 || q.NodeErrors[1] == nil {
			t.Errorf("error is %v", err)
		}
		if w[0].Exists("k") || w[2].Exists("k") {
			t.Error("it is not released")
		}
	})
}
