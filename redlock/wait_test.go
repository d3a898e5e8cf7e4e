package redlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// wait runs Lock in the background, and returns where the moment of its success arrives.
func wait(t *testing.T, l *redlock.Lock) <-chan time.Time {
	t.Helper()
	got := make(chan time.Time, 1)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	async(t, func() {
		if err := l.Lock(ctx); err == nil {
			got <- time.Now()
		} else if ctx.Err() == nil {
			t.Error(err)
		}
	})
	t.Cleanup(cancel) // runs before the wait for the goroutine
	return got
}

// arrival waits for what wait returned.
func arrival(t *testing.T, got <-chan time.Time, within time.Duration) time.Time {
	t.Helper()
	select {
	case at := <-got:
		return at
	case <-time.After(within):
		t.Fatalf("not acquired within %v", within)
		return time.Time{}
	}
}

func TestWaiterIsWokenByTheRelease(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		holder, waiter := w.party(t, redlock.Config{}).NewLock("k"), w.party(t, redlock.Config{}).NewLock("k")
		for range 5 {
			must(t, holder.TryLock(t.Context()))
			got := wait(t, waiter)
			time.Sleep(7 * time.Second)
			released := time.Now()
			must(t, holder.Unlock(t.Context()))
			if d := arrival(t, got, time.Minute).Sub(released); d > 20*time.Millisecond {
				t.Errorf("acquired %v after the release", d)
			}
			must(t, waiter.Unlock(t.Context()))
		}
	})
}

func TestWaiterIsWokenByARealRelease(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		key := redistest.Key(t)
		holder, waiter := s.manager(t, redlock.Config{}).NewLock(key), s.manager(t, redlock.Config{}).NewLock(key)
		best := time.Hour
		for range 5 {
			must(t, holder.TryLock(t.Context()))
			got := wait(t, waiter)
			time.Sleep(50 * time.Millisecond)
			released := time.Now()
			must(t, holder.Unlock(t.Context()))
			best = min(best, arrival(t, got, 5*time.Second).Sub(released))
			must(t, waiter.Unlock(t.Context()))
		}
		if best > 20*time.Millisecond { // others may keep the machine busy once, but not five times
			t.Errorf("acquired %v after the release at best", best)
		}
	})
}

func TestWaiterSendsNothingWhileItWaits(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		holder, waiter := w.party(t, redlock.Config{}).NewLock("k"), w.party(t, redlock.Config{}).NewLock("k")
		must(t, holder.TryLock(t.Context()))
		got := wait(t, waiter)
		time.Sleep(time.Second)
		synctest.Wait()
		sent := w.commands()
		time.Sleep(25 * time.Second)
		if n := w.commands() - sent; n > 0 {
			t.Errorf("%d commands within 25s of waiting", n)
		}
		must(t, holder.Unlock(t.Context()))
		arrival(t, got, time.Second)
	})
}

// Each waiter that tries gets the key where the holder has lost it, and gives it back: that must wake nobody.
func TestWaitersDoNotWakeEachOther(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		holder := w.party(t, redlock.Config{}).NewLock("k")
		must(t, holder.TryLock(t.Context()))
		synctest.Wait()
		w[2].Del("k")
		var waiting []<-chan time.Time
		for range 3 {
			waiting = append(waiting, wait(t, w.party(t, redlock.Config{}).NewLock("k")))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		sent := w.commands()
		time.Sleep(20 * time.Second)
		if n := w.commands() - sent; n > 0 {
			t.Errorf("%d commands within 20s of waiting", n)
		}
		released := time.Now()
		must(t, holder.Unlock(t.Context()))
		select { // any of them
		case <-waiting[0]:
		case <-waiting[1]:
		case <-waiting[2]:
		}
		if d := time.Since(released); d > 20*time.Millisecond {
			t.Errorf("acquired %v after the release", d)
		}
	})
}

func (w world) commands() (n int) {
	for _, s := range w {
		n += s.CommandCount()
	}
	return n
}

func TestWaiterWhoseMessageIsLostComesAtTheEndOfTheTTL(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, world, *redlock.Lock){
		"deleted without a message": func(_ *testing.T, w world, _ *redlock.Lock) {
			for _, s := range w {
				s.Del("k")
			}
		},
		"the holder is gone": func(*testing.T, world, *redlock.Lock) {},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, w world) {
				cfg := redlock.Config{Expiry: 10 * time.Second}
				holder, waiter := w.party(t, cfg), w.party(t, cfg).NewLock("k")
				begin := time.Now()
				l := holder.NewLock("k")
				must(t, l.TryLock(t.Context()))
				holder.each((*bubble.Link).Cut)
				got := wait(t, waiter)
				time.Sleep(3 * time.Second)
				lose(t, w, l)
				if d := arrival(t, got, time.Minute).Sub(begin); d < 10*time.Second || d > 10*time.Second+20*time.Millisecond {
					t.Errorf("acquired after %v", d)
				}
			})
		})
	}
}

// releaser is a node at which something happens just before the subscription is made.
type releaser struct {
	*redis.Client
	before func()
}

func (r releaser) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	r.before()
	return r.Client.Subscribe(ctx, channels...)
}

func TestReleaseBetweenTheFailedTryAndTheSubscriptionIsNotMissed(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		holder := w.party(t, redlock.Config{}).NewLock("k")
		must(t, holder.TryLock(t.Context()))
		var done atomic.Int32
		waiter := w.party(t, redlock.Config{}, func(c *redis.Client) redlock.Node {
			return &releaser{c, func() {
				if done.Add(1) == 1 {
					_ = holder.Unlock(context.Background())
				}
			}}
		}).NewLock("k")
		begin := time.Now()
		got := wait(t, waiter)
		if d := arrival(t, got, time.Minute).Sub(begin); d > 20*time.Millisecond || done.Load() == 0 {
			t.Errorf("acquired after %v, %d subscriptions", d, done.Load())
		}
	})
}

// Whenever the release comes, while the waiter's commands and subscriptions are under way, it is not missed.
func TestReleaseAtAnyMomentWakesTheWaiter(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		const way = 10 * time.Millisecond
		for after := time.Duration(0); after < 200*time.Millisecond; after += 3 * time.Millisecond {
			key := fmt.Sprint("k", after)
			holder, party := w.party(t, redlock.Config{}).NewLock(key), w.party(t, redlock.Config{})
			party.each(func(l *bubble.Link) { l.Delay(bubble.Both, way) })
			must(t, holder.TryLock(t.Context()))
			got := wait(t, party.NewLock(key))
			time.Sleep(after)
			released := time.Now()
			must(t, holder.Unlock(t.Context()))
			// The message takes a way, an attempt two. One that just failed is undone and followed by a look and another.
			if d := arrival(t, got, time.Minute).Sub(released); d > 20*time.Millisecond+12*way {
				t.Errorf("released after %v, acquired %v later", after, d)
			}
		}
	})
}

func TestWaiterThatGivesUpLeavesNoSubscription(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		key := redistest.Key(t)
		holder, m := s.manager(t, redlock.Config{}).NewLock(key), s.manager(t, redlock.Config{})
		must(t, holder.TryLock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 5)
		for range cap(failed) {
			async(t, func() { failed <- m.NewLock(key).Lock(ctx) })
		}
		subscribers := func(i int) int64 {
			c := key + ":released"
			return s.servers[i].Client().PubSubNumSub(context.Background(), c).Val()[c]
		}
		for i := range s.servers { // one for all that wait
			eventually(t, 2*time.Second, "there is a subscription", func() bool { return subscribers(i) == 1 })
		}
		cancel()
		for range cap(failed) {
			wantIs(t, <-failed, context.Canceled)
		}
		for i := range s.servers {
			eventually(t, time.Second, "the subscription is gone", func() bool { return subscribers(i) == 0 })
		}
		// and the holder is as it was.
		must(t, holder.Unlock(t.Context()))
	})
}

func TestWaiterSurvivesTheLossOfItsSubscription(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		key := redistest.Key(t)
		holder, waiter := s.manager(t, redlock.Config{}).NewLock(key), s.manager(t, redlock.Config{}).NewLock(key)
		must(t, holder.TryLock(t.Context()))
		got := wait(t, waiter)
		time.Sleep(100 * time.Millisecond)
		for _, srv := range s.servers {
			must(t, srv.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err())
		}
		must(t, holder.Unlock(t.Context()))
		arrival(t, got, time.Second)
	})
}

func TestLockOnUnreachableNodesEndsWithItsContext(t *testing.T) {
	for name, sever := range severed {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, w world) {
				p := w.party(t, redlock.Config{})
				p.each(sever)
				ctx, cancel := context.WithTimeout(t.Context(), 3700*time.Millisecond)
				defer cancel()
				begin := time.Now()
				wantIs(t, p.NewLock("k").Lock(ctx), context.DeadlineExceeded)
				if d := time.Since(begin); d > 3700*time.Millisecond {
					t.Errorf("it took %v", d)
				}
				p.each(mend)
				time.Sleep(2 * time.Second)
				w.wantFree(t, "k")
			})
		})
	}
}

func TestLockGoesOnWhenTheNodesComeBack(t *testing.T) {
	for name, sever := range severed {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, w world) {
				p := w.party(t, redlock.Config{})
				p.each(sever)
				got := wait(t, p.NewLock("k"))
				time.Sleep(10 * time.Second)
				p.each(mend)
				arrival(t, got, 2*time.Second)
			})
		})
	}
}

func TestFiftyContenders(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		const n = contenders
		var holders, acquired atomic.Int32
		var longest, last = time.Duration(0), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ended := make(chan struct{}, n)
		for range n {
			p := w.party(t, redlock.Config{Expiry: 15 * time.Second})
			l := p.NewLock("k", redlock.WithAutoRenew(5*time.Second))
			async(t, func() {
				defer func() { ended <- struct{}{} }()
				for ctx.Err() == nil {
					if l.Lock(ctx) != nil {
						continue
					}
					// Given the lease there is no other holder, and the next one is soon found.
					if holders.Add(1) > 1 {
						t.Error("two hold it")
					}
					longest = max(longest, time.Since(last))
					time.Sleep(2*time.Second + rand.N(6*time.Second)) // renewed meanwhile
					acquired.Add(1)
					holders.Add(-1)
					last = time.Now()
					if err := l.Unlock(ctx); err != nil {
						t.Error(err)
					}
					time.Sleep(rand.N(time.Second)) // the others are to have their turn
				}
			})
		}
		for range n {
			<-ended
		}
		t.Logf("%d acquisitions, at most %v from a release to the next, %d commands", acquired.Load(), longest, w.commands())
		if acquired.Load() < 5 || longest > 500*time.Millisecond {
			t.Errorf("%d acquisitions in a minute, %v from a release to the next", acquired.Load(), longest)
		}
		if each := w.commands() / int(acquired.Load()); each > 30*n { // ten on each node for a waiter that is woken once
			t.Errorf("%d commands for each acquisition", each)
		}
		time.Sleep(2 * time.Second) // losers clean up
		w.wantFree(t, "k")
		for i, s := range w {
			if c := s.PubSubChannels("*"); len(c) > 0 {
				t.Errorf("server %d still has subscriptions to %q", i, c)
			}
		}
	})
}

// All at once, without waiting for one another.
func TestFiftyTryLocksAtOnce(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		const n = contenders
		won := make(chan bool, n)
		var locks []*redlock.Lock
		for range n {
			p := w.party(t, redlock.Config{Attempts: 10, RetryDelay: 20 * time.Millisecond})
			p.each(func(l *bubble.Link) { l.Delay(bubble.Both, rand.N(3*time.Millisecond)) })
			locks = append(locks, p.NewLock("k"))
		}
		for _, l := range locks {
			async(t, func() { won <- l.TryLock(t.Context()) == nil })
		}
		winners := 0
		for range n {
			if <-won {
				winners++
			}
		}
		if winners != 1 {
			t.Fatalf("%d of %d acquired it", winners, n)
		}
		for _, l := range locks {
			if l.Held() {
				must(t, l.Unlock(t.Context()))
			}
		}
		time.Sleep(2 * time.Second)
		w.wantFree(t, "k")
	})
}
