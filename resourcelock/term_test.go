package resourcelock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"

	"k8s.io/client-go/tools/leaderelection"
)

// Under Context the elector ends at its next renewal after the loss, and not at its RenewDeadline.
func TestContextEndsTheElectorAtALoss(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		a := newCandidate(t, s.manager(t), "a")
		ctx, cancel := a.lock.Context(t.Context())
		defer cancel()
		a.runIn(t, ctx)
		time.Sleep(time.Second)
		lost := a.lock.Lost()
		s.deleteLease()
		start := time.Now()
		<-a.done
		if d := time.Since(start); d > retryPeriod {
			t.Errorf("a led on for %v", d)
		}
		if err := context.Cause(ctx); !errors.Is(err, redlock.ErrLockLost) {
			t.Errorf("the cause is %v", err)
		}
		select {
		case <-lost:
		default:
			t.Error("Lost is not closed")
		}
	})
}

// Redis is silent and client-go's durations are such that it would lead on past the TTL: Context ends the work
// before the first key can expire.
func TestContextEndsTheWorkBeforeTheTTL(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		m, network := s.remote(t)
		worked := time.Duration(-1)
		var start time.Time
		a := newCandidate(t, m, "a", func(_ *resourcelock.Config, lec *leaderelection.LeaderElectionConfig) {
			lec.RenewDeadline, lec.RetryPeriod = 14*time.Second, 5*time.Second
			lec.Callbacks.OnStartedLeading = func(ctx context.Context) {
				<-ctx.Done()
				worked = time.Since(start)
			}
		})
		ctx, cancel := a.lock.Context(t.Context())
		defer cancel()
		a.runIn(t, ctx)
		time.Sleep(time.Second)
		start = time.Now()
		network.silence()
		<-a.done
		synctest.Wait()
		if worked < 0 || worked >= leaseDuration-time.Second {
			t.Errorf("the work went on for %v, with a TTL of %v that had begun a second before", worked, leaseDuration)
		}
		network.mend()
	})
}

// When it could not renew in time client-go releases first and tells the work afterwards: Context turns that round.
func TestContextEndsTheWorkBeforeTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 1)
		a := newCandidate(t, s.manager(t), "a").lock
		if err := a.Create(t.Context(), recordOf(a, leaseDuration)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := a.Context(t.Context())
		defer cancel()
		heldWhenCancelled := make(chan bool, 1)
		defer context.AfterFunc(ctx, func() { heldWhenCancelled <- s.hasLease() })()
		s[0].SetError("LOADING") // the release is tried once the work has been told
		if err := a.Update(t.Context(), rl.LeaderElectionRecord{}); err == nil {
			t.Fatal("a release without Redis")
		}
		s[0].SetError("")
		if !<-heldWhenCancelled || !errors.Is(context.Cause(ctx), redlock.ErrNotHeld) {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
	})
}

// Redis hangs while client-go releases: it goes on after a handful of calls, and no later than the lease's validity.
func TestAReleaseDoesNotWaitForARedisThatHangs(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		m, network := s.remote(t)
		ops := new(opsLock)
		a := newCandidate(t, m, "a", ops.record)
		a.run(t)
		time.Sleep(leaseDuration) // renewed every 2s, last at 14s
		network.silence()
		start := time.Now()
		a.stop()
		<-a.done
		if d := time.Since(start); d > time.Second+50*time.Millisecond {
			t.Errorf("the elector ended after %v", d)
		}
		if n := len(ops.since(start)); n > 3 {
			t.Errorf("%d calls to release: %q", n, ops.since(start))
		}
		network.mend()
	})
}

// In the last moment of the validity neither the look nor the release that client-go does waits any longer.
func TestAReleaseEndsWithTheValidity(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		m, network := s.remote(t)
		a := newCandidate(t, m, "a").lock
		if err := a.Create(t.Context(), recordOf(a, leaseDuration)); err != nil {
			t.Fatal(err)
		}
		network.silence()
		time.Sleep(m.Validity(leaseDuration) - 100*time.Millisecond)
		start := time.Now()
		_, _, _ = a.Get(t.Context())
		_ = a.Update(t.Context(), rl.LeaderElectionRecord{})
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("it took %v, 100ms before the end of the validity", d)
		}
		network.mend()
	})
}

// Somebody else leads while client-go still retries, and FastHandover is on: nothing waits for that leader's end.
func TestALeaderThatLostDoesNotWaitInGet(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		a := newCandidate(t, s.manager(t), "a", fast).run(t)
		time.Sleep(time.Second)
		s.deleteLease()
		b := newCandidate(t, s.manager(t), "b").lock
		if err := b.Create(t.Context(), recordOf(b, time.Hour)); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		<-a.done
		if d := time.Since(start); d > retryPeriod+renewDeadline {
			t.Errorf("a led on for %v", d)
		}
	})
}

// The acquisition is in flight when the elector is cancelled: nobody will release it, so no key may stay.
func TestNoKeyIsLeftByACancelledAcquisition(t *testing.T) {
	for _, d := range []bubble.Direction{bubble.ToServer, bubble.ToClient} {
		inBoth(t, func(t *testing.T, s servers) {
			m, network := s.remote(t)
			a := newCandidate(t, m, "a")
			// Get is answered at once: it is the acquisition that hangs.
			lec := newOpsElector(t, a, func(op string) {
				if op == "create" {
					network.each(func(l *bubble.Link) { l.Hold(d) })
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); lec.Run(ctx) }()
			time.Sleep(100 * time.Millisecond)
			cancel()
			start := time.Now()
			<-done
			if d := time.Since(start); d > 0 {
				t.Errorf("Run returned after %v", d)
			}
			network.each(func(l *bubble.Link) { l.Release(d) })
			time.Sleep(3 * time.Second)
			if s.hasLease() || len(a.epochs()) > 0 {
				t.Errorf("the key is there: %v; started %d times", s.hasLease(), len(a.epochs()))
			}
		})
	}
}

// FenceFloor raises the epoch, its error fails the attempt, and a call of it that hangs is ended.
func TestFenceFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 1)
		answer := func(context.Context) (uint64, error) { return 41, nil }
		a := newCandidate(t, s.manager(t), "a", func(cfg *resourcelock.Config, _ *leaderelection.LeaderElectionConfig) {
			cfg.FenceFloor = func(ctx context.Context) (uint64, error) { return answer(ctx) }
		}).lock
		if err := a.Create(t.Context(), recordOf(a, leaseDuration)); err != nil || a.Epoch() != 42 {
			t.Fatalf("epoch %d: %v", a.Epoch(), err)
		}
		if r := get(t, a); r.LeaderTransitions != 41 {
			t.Errorf("%d transitions", r.LeaderTransitions)
		}
		if err := a.Update(t.Context(), rl.LeaderElectionRecord{}); err != nil {
			t.Fatal(err)
		}
		broken := errors.New("no database")
		answer = func(context.Context) (uint64, error) { return 0, broken }
		if err := a.Create(t.Context(), recordOf(a, leaseDuration)); !errors.Is(err, broken) || s.hasLease() {
			t.Errorf("acquired without a floor: %v", err)
		}
		answer = func(ctx context.Context) (uint64, error) { <-ctx.Done(); return 0, ctx.Err() }
		start := time.Now()
		if err := a.Update(context.Background(), recordOf(a, leaseDuration)); err == nil || time.Since(start) > leaseDuration/3 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// A renewal that nobody answers is an error, no loss; a later one prolongs the same term.
func TestAnInconclusiveRenewalCanBeRepeated(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		m, network := s.remote(t)
		a := newCandidate(t, m, "a").lock
		if err := a.Create(t.Context(), recordOf(a, leaseDuration)); err != nil {
			t.Fatal(err)
		}
		epoch := a.Epoch()
		network.silence()
		start := time.Now()
		err := a.Update(context.Background(), recordOf(a, leaseDuration))
		if !errors.Is(err, redlock.ErrInconclusive) || time.Since(start) > leaseDuration/3+time.Second {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		network.mend()
		if err := a.Update(t.Context(), recordOf(a, leaseDuration)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(leaseDuration - time.Second)
		if r := get(t, a); r.HolderIdentity != "a" || a.Epoch() != epoch {
			t.Errorf("held by %q under epoch %d, want a under %d", r.HolderIdentity, a.Epoch(), epoch)
		}
	})
}

// A term that was released by its own elector leaves room at once; one that was kept does not until its TTL.
func TestRunAgain(t *testing.T) {
	for _, release := range []bool{true, false} {
		inBoth(t, func(t *testing.T, s servers) {
			a := newCandidate(t, s.manager(t), "a", func(_ *resourcelock.Config, lec *leaderelection.LeaderElectionConfig) {
				lec.ReleaseOnCancel = release
			}).run(t)
			time.Sleep(time.Second)
			a.stop()
			<-a.done
			a.run(t)
			time.Sleep(10 * time.Millisecond)
			if leads := len(a.epochs()) == 2; leads != release {
				t.Errorf("released: %v; leads again at once: %v", release, leads)
			}
			time.Sleep(leaseDuration + 3*retryPeriod)
			if len(a.epochs()) != 2 {
				t.Errorf("it led %d times", len(a.epochs()))
			}
		})
	}
}
