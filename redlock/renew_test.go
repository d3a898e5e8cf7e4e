package redlock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

// severed are the ways in which a network can be gone.
var severed = map[string]func(*bubble.Link){
	"cut":               (*bubble.Link).Cut,
	"silent":            (*bubble.Link).Silence,
	"replies lost":      func(l *bubble.Link) { l.Drop(bubble.ToClient) },
	"commands held":     func(l *bubble.Link) { l.Hold(bubble.ToServer) },
	"replies held":      func(l *bubble.Link) { l.Hold(bubble.ToClient) },
	"slow beyond sense": func(l *bubble.Link) { l.Delay(bubble.Both, 700*time.Millisecond) },
}

func mend(l *bubble.Link) {
	l.Delay(bubble.Both, 0)
	l.Mend()
}

func TestBlipIsNoLoss(t *testing.T) {
	for name, sever := range severed {
		for _, blip := range []time.Duration{1500 * time.Millisecond, 8 * time.Second} {
			t.Run(fmt.Sprintf("%s for %v", name, blip), func(t *testing.T) {
				virtually(t, func(t *testing.T, w world) {
					// Given a lease of ten seconds that is renewed every second,
					p := w.party(t, redlock.Config{Expiry: 10 * time.Second})
					l := p.NewLock("k", redlock.WithAutoRenew(time.Second))
					must(t, l.TryLock(t.Context()))
					synctest.Wait() // until it stands on the last server
					value, _ := w[0].Get("k")
					time.Sleep(4600 * time.Millisecond)
					// when the network is gone for a while,
					p.each(sever)
					time.Sleep(blip)
					p.each(mend)
					time.Sleep(time.Minute)
					// then it is held by the same token, on every server.
					if !l.Held() || isLost(l) {
						t.Fatal("the lease is lost")
					}
					for i, s := range w {
						if v, _ := s.Get("k"); v != value || s.TTL("k") < 8*time.Second {
							t.Errorf("server %d has it for %v", i, s.TTL("k"))
						}
					}
					must(t, l.Unlock(t.Context()))
				})
			})
		}
	}
}

func TestLossIsToldBeforeTheFirstKeyExpires(t *testing.T) {
	for name, sever := range severed {
		for _, after := range []time.Duration{100 * time.Millisecond, 2950 * time.Millisecond, 3 * time.Second, 10 * time.Second} {
			t.Run(fmt.Sprintf("%s after %v", name, after), func(t *testing.T) {
				virtually(t, func(t *testing.T, w world) { lossIsTold(t, w, sever, after) })
			})
		}
	}
}

func lossIsTold(t *testing.T, w world, sever func(*bubble.Link), after time.Duration) {
	// Given a holder, and somebody who waits,
	cfg := redlock.Config{Expiry: 10 * time.Second}
	us, them := w.party(t, cfg), w.party(t, cfg)
	l, heir := us.NewLock("k", redlock.WithAutoRenew(3*time.Second)), them.NewLock("k")
	must(t, l.TryLock(t.Context()))
	ctx, cancel := l.Context(t.Context())
	defer cancel()
	synctest.Wait()
	var got time.Time
	async(t, func() {
		if err := heir.Lock(t.Context()); err != nil {
			t.Error(err)
		}
		got = time.Now()
	})
	time.Sleep(after)
	// when the holder is cut off for good,
	until := l.ValidUntil()
	us.each(sever)
	<-l.Lost()
	// then it is told by the end of validity, while every key is there,
	lost := time.Now()
	if lost.After(until.Add(3*time.Second)) || l.Held() || !l.ValidUntil().IsZero() {
		t.Errorf("lost %v after the end of validity, held %v", lost.Sub(until), l.Held())
	}
	synctest.Wait()
	if context.Cause(ctx) != redlock.ErrLockLost {
		t.Errorf("the context's cause is %v", context.Cause(ctx))
	}
	if n := w.holding("k"); n < len(w)/2+1 {
		t.Errorf("the loss is told when the key is left on %d servers", n)
	}
	// and before anyone else acquires.
	time.Sleep(25 * time.Second)
	synctest.Wait()
	if !got.After(lost) {
		t.Errorf("acquired by somebody else at %v, lost at %v", got, lost)
	}
	if !heir.Held() && got.IsZero() {
		t.Error("nobody took over")
	}
	us.each(mend)
}

// A renewal of unknown fate is bounded by the validity that there is: the one that it hopes for may never come.
func TestRenewalInFlightIsBoundedByTheOldValidity(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		p := w.party(t, redlock.Config{Expiry: 2 * time.Second, OperationTimeout: 5 * time.Second})
		l := p.NewLock("k")
		must(t, l.TryLock(t.Context()))
		until := l.ValidUntil()
		time.Sleep(time.Second)
		p.each(func(l *bubble.Link) { l.Drop(bubble.ToClient) }) // the servers renew, and nobody hears of it
		err := l.Extend(t.Context(), time.Hour)
		wantIs(t, err, redlock.ErrLockLost)
		if d := time.Since(until); d > time.Millisecond || !isLost(l) {
			t.Errorf("Extend returned %v after the old validity, lost %v", d, isLost(l))
		}
		p.each(mend)
		time.Sleep(10 * time.Second)
		w.wantFree(t, "k") // although renewed to an hour
	})
}

func TestUnrenewedLeaseEndsByItself(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		l := w.party(t, redlock.Config{Expiry: 10 * time.Second}).NewLock("k")
		begin := time.Now()
		must(t, l.TryLock(t.Context()))
		ctx, cancel := l.Context(t.Context())
		defer cancel()
		if want := begin.Add(9898 * time.Millisecond); !l.ValidUntil().Equal(want) {
			t.Errorf("valid until %v, want %v", l.ValidUntil(), want)
		}
		time.Sleep(9897 * time.Millisecond)
		if !l.Held() || ctx.Err() != nil {
			t.Error("lost too early")
		}
		<-l.Lost()
		<-ctx.Done()
		if d := time.Since(begin); d != 9898*time.Millisecond {
			t.Errorf("told after %v", d)
		}
		if context.Cause(ctx) != redlock.ErrLockLost || l.Held() {
			t.Errorf("cause %v, held %v", context.Cause(ctx), l.Held())
		}
		synctest.Wait()
		w.wantFree(t, "k")
		wantIs(t, l.Unlock(t.Context()), redlock.ErrLockLost)
	})
}

// A renewal that was not answered may be executed after a later, longer one.
func TestLateShorterRenewalDoesNotOutdateTheHolder(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		p := w.party(t, redlock.Config{Expiry: 10 * time.Second})
		l := p.NewLock("k", redlock.WithRenewDeadline(9*time.Second))
		must(t, l.TryLock(t.Context()))
		time.Sleep(time.Second)
		// Given a renewal to two seconds on its way,
		p.each(func(l *bubble.Link) { l.Delay(bubble.ToServer, 1500*time.Millisecond) })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		async(t, func() { _ = l.Extend(ctx, 2*time.Second) })
		time.Sleep(600 * time.Millisecond)
		p.each(func(l *bubble.Link) { l.Delay(bubble.ToServer, 0) })
		// when one to a minute overtakes it,
		_ = l.Extend(t.Context(), time.Minute)
		// then the lease is never thought to be held when a majority no longer has it.
		for range 7000 {
			time.Sleep(10 * time.Millisecond)
			if l.Held() && w.holding("k") < len(w)/2+1 {
				t.Fatalf("held until %v, and only on %d servers", l.ValidUntil(), w.holding("k"))
			}
		}
	})
}

func TestDeletedFromOutsideIsToldByTheNextRenewal(t *testing.T) {
	for name, act := range map[string]func(world){
		"deleted": func(w world) {
			for _, s := range w[:len(w)/2+1] {
				s.Del("k")
			}
		},
		"flushed": func(w world) {
			for _, s := range w {
				s.FlushAll()
			}
		},
		"overwritten": func(w world) {
			for _, s := range w {
				_ = s.Set("k", "something else")
			}
		},
		"another type": func(w world) {
			for _, s := range w {
				s.Del("k")
				_, _ = s.Push("k", "a list")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, w world) {
				l := w.party(t, redlock.Config{Expiry: 10 * time.Second}).NewLock("k", redlock.WithAutoRenew(time.Second))
				must(t, l.TryLock(t.Context()))
				time.Sleep(1500 * time.Millisecond)
				begin := time.Now()
				act(w)
				<-l.Lost()
				if d := time.Since(begin); d > 510*time.Millisecond {
					t.Errorf("told after %v", d)
				}
				time.Sleep(time.Minute)
				if n := w.holding("k"); (name == "deleted" || name == "flushed") && n > 0 {
					t.Errorf("the lease was created anew on %d servers", n)
				} else if (name == "overwritten" || name == "another type") && n != len(w) {
					t.Errorf("what others put there is left on %d servers only", n)
				}
			})
		})
	}
}
