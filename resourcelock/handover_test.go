package resourcelock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// Released gracefully: a follower leads, epoch and LeaderTransitions go up by one.
func TestGracefulRelease(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		a := newCandidate(t, s.manager(t), "a").run(t)
		time.Sleep(time.Second)
		b := newCandidate(t, s.manager(t), "b").run(t)
		time.Sleep(3 * retryPeriod)
		if !a.elector.IsLeader() || b.elector.IsLeader() || b.elector.GetLeader() != "a" {
			t.Fatalf("want a to lead, and b to know: b sees %q", b.elector.GetLeader())
		}
		before := get(t, b.lock).LeaderTransitions

		a.stop()
		<-a.done
		time.Sleep(3 * retryPeriod)
		if !b.elector.IsLeader() || a.stops() != 1 {
			t.Fatalf("b leads: %v; a stopped %d times", b.elector.IsLeader(), a.stops())
		}
		r := get(t, b.lock)
		if r.HolderIdentity != "b" || r.LeaderTransitions != before+1 {
			t.Fatalf("record says %q with %d transitions, want b with %d", r.HolderIdentity, r.LeaderTransitions, before+1)
		}
		if !equal(a.epochs(), []uint64{1}) || !equal(b.epochs(), []uint64{2}) {
			t.Fatalf("epochs %v and %v", a.epochs(), b.epochs())
		}
	})
}

// Exactly one leader at any time, epochs that grow by one, and LeaderTransitions one below them.
func TestThirtyHandoversInARow(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		cs := []*candidate{
			newCandidate(t, s.manager(t), "a", fast).run(t),
			newCandidate(t, s.manager(t), "b", fast).run(t),
			newCandidate(t, s.manager(t), "c", fast).run(t),
		}
		time.Sleep(3 * retryPeriod)
		for i := range 30 {
			leader := theLeader(t, cs...)
			r := get(t, leader.lock)
			if r.HolderIdentity != leader.name || r.LeaderTransitions != i {
				t.Fatalf("after %d handovers the record is %+v, and %s leads", i, r, leader.name)
			}
			if e := leader.lock.Epoch(); e != uint64(i+1) {
				t.Fatalf("after %d handovers the epoch is %d", i, e)
			}
			leader.stop()
			<-leader.done
			leader.run(t)
			time.Sleep(3 * retryPeriod)
		}
	})
}

// The key is deleted under the leader: it stops, and never goes on under another epoch.
func TestDeletedKey(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		a := newCandidate(t, s.manager(t), "a").run(t)
		time.Sleep(retryPeriod + time.Second)
		first := a.lock.Epoch()
		s.deleteLease()
		start := time.Now()
		<-a.done
		if d := time.Since(start); d > renewDeadline+retryPeriod {
			t.Fatalf("a led on for %v", d)
		}
		if a.stops() != 1 || a.lock.Epoch() != 0 {
			t.Fatalf("stopped %d times, epoch %d", a.stops(), a.lock.Epoch())
		}
		a.run(t)
		time.Sleep(retryPeriod)
		if !a.elector.IsLeader() || len(a.epochs()) != 2 || a.lock.Epoch() <= first {
			t.Fatalf("after another Run: leads %v, epochs %v", a.elector.IsLeader(), a.epochs())
		}
	})
}

// Another led and released while our elector was still retrying: we do not lead again within the same term.
func TestNoSilentSecondTerm(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		a := newCandidate(t, s.manager(t), "a").run(t)
		time.Sleep(time.Second)
		s.deleteLease()
		other := s.manager(t).NewLock("{ns/name}:lease")
		if err := other.TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retryPeriod + time.Second) // a's renewal has failed
		if a.ended() {
			t.Fatal("the elector gave up before its RenewDeadline: this test shows nothing")
		}
		if err := other.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retryPeriod + time.Second) // free: client-go's renew loop would take it
		if a.elector.IsLeader() || s.hasLease() {
			t.Fatalf("after the loss a leads: %v; the lease is taken: %v", a.elector.IsLeader(), s.hasLease())
		}
		<-a.done
		if len(a.epochs()) != 1 || a.stops() != 1 {
			t.Fatalf("started %d times, stopped %d times", len(a.epochs()), a.stops())
		}
	})
}

// Redis comes back empty: the epoch still grows, for the highest one is remembered.
func TestEpochsGrowThoughRedisForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 1)
		for range 3 {
			a := newCandidate(t, s.manager(t), "a").run(t)
			time.Sleep(time.Second)
			a.stop()
			<-a.done
		}
		a := newCandidate(t, s.manager(t), "a").run(t)
		b := newCandidate(t, s.manager(t), "b").run(t)
		time.Sleep(3 * retryPeriod) // both have seen epoch 4
		s[0].FlushAll()
		time.Sleep(renewDeadline + 3*retryPeriod)
		leader := a
		if b.elector.IsLeader() {
			leader = b
		}
		if e := leader.lock.Epoch(); e != 5 {
			t.Fatalf("epoch %d after four terms and a flush, want 5 (a: %v, b: %v)", e, a.epochs(), b.epochs())
		}
	})
}

// Redis is away for longer than RenewDeadline: the leader stops in time, and one leads again afterwards.
func TestRedisIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 1)
		a := newCandidate(t, s.manager(t), "a").run(t)
		time.Sleep(retryPeriod / 2)
		b := newCandidate(t, s.manager(t), "b").run(t)
		time.Sleep(3 * retryPeriod)
		s[0].SetError("LOADING it is away")
		start := time.Now()
		<-a.done
		if d := time.Since(start); d >= leaseDuration {
			t.Fatalf("the leader stopped after %v", d)
		}
		time.Sleep(leaseDuration)
		s[0].SetError("")
		a.run(t)
		time.Sleep(2*retryPeriod + time.Second)
		if a.elector.IsLeader() == b.elector.IsLeader() {
			t.Fatalf("a leads: %v, b leads: %v", a.elector.IsLeader(), b.elector.IsLeader())
		}
		if e := max(a.lock.Epoch(), b.lock.Epoch()); e != 2 {
			t.Fatalf("epoch %d, want 2", e)
		}
	})
}

// A leader that hung while another took over is cancelled: the other's lease stays.
func TestReleaseLeavesAnothersLeaseAlone(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		a := newCandidate(t, s.manager(t), "a")
		rec := rl.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
		if err := a.lock.Create(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(leaseDuration + time.Second) // it hung
		b := newCandidate(t, s.manager(t), "b")
		rec.HolderIdentity = "b"
		if err := b.lock.Update(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		if r := get(t, a.lock); r.HolderIdentity != "b" {
			t.Fatalf("a sees %q", r.HolderIdentity)
		}
		if err := a.lock.Update(t.Context(), rl.LeaderElectionRecord{LeaseDurationSeconds: 1}); err != nil {
			t.Fatalf("releasing a lease that is gone: %v", err)
		}
		if r := get(t, b.lock); r.HolderIdentity != "b" {
			t.Fatalf("b's lease is %q's after a's release", r.HolderIdentity)
		}
	})
}

// Once the validity is over a release does not ask a Redis that hangs.
func TestReleaseAfterTheEndOfValidityIsLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 1)
		a := newCandidate(t, s.manager(t), "a")
		if err := a.lock.Create(t.Context(), rl.LeaderElectionRecord{LeaseDurationSeconds: 15}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(leaseDuration)
		start := time.Now()
		if err := a.lock.Update(t.Context(), rl.LeaderElectionRecord{}); err != nil || time.Since(start) != 0 {
			t.Fatalf("took %v: %v", time.Since(start), err)
		}
	})
}

func TestWhatAnElectorIsTold(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		a, b := newCandidate(t, s.manager(t), "a").lock, newCandidate(t, s.manager(t), "b").lock
		ctx := t.Context()
		rec := rl.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}

		if _, _, err := a.Get(ctx); !apierrors.IsNotFound(err) {
			t.Fatalf("Get of a lease that nobody ever held: %v", err)
		}
		if err := a.Update(ctx, rl.LeaderElectionRecord{HolderIdentity: "a"}); err == nil || apierrors.IsConflict(err) {
			t.Fatalf("a lease of 0 seconds: %v", err)
		}
		if err := a.Create(ctx, rec); err != nil {
			t.Fatal(err)
		}
		if err := b.Create(ctx, rec); !apierrors.IsAlreadyExists(err) {
			t.Fatalf("Create of a taken lease: %v", err)
		}
		if err := b.Update(ctx, rec); !errors.Is(err, redlock.ErrNotAcquired) || apierrors.IsConflict(err) {
			t.Fatalf("Update of a taken lease: %v", err)
		}

		_, raw1, _ := b.Get(ctx)
		time.Sleep(time.Second)
		_, raw2, _ := b.Get(ctx)
		if string(raw1) != string(raw2) {
			t.Fatalf("nothing was written, and the raw record changed:\n%s\n%s", raw1, raw2)
		}
		if err := a.Update(ctx, rec); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the last of three nodes may be a moment later
		r3, raw3, _ := b.Get(ctx)
		if string(raw2) == string(raw3) {
			t.Fatal("the lease was renewed, and the raw record is the same")
		}
		if d := time.Since(r3.RenewTime.Time).Abs(); d > 50*time.Millisecond {
			t.Fatalf("RenewTime is %v off", d)
		}

		if err := a.Update(ctx, rl.LeaderElectionRecord{LeaderTransitions: r3.LeaderTransitions}); err != nil {
			t.Fatal(err)
		}
		r4, raw4, err := b.Get(ctx)
		if err != nil || r4.HolderIdentity != "" || r4.LeaderTransitions != r3.LeaderTransitions || string(raw4) == string(raw3) {
			t.Fatalf("after a release: %+v, %v", r4, err)
		}
	})
}

// A lease is taken, or is not known to be, whatever a minority says.
func TestCreateWhileNodesAreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t, 3)
		m, links := s.remote(t)
		b := newCandidate(t, m, "b").lock
		rec := rl.LeaderElectionRecord{HolderIdentity: "a", LeaseDurationSeconds: 15}
		if err := newCandidate(t, s.manager(t), "a").lock.Create(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // for the third node
		links[0].Silence()
		if err := b.Create(t.Context(), rec); !apierrors.IsAlreadyExists(err) {
			t.Errorf("Create of a taken lease with one node down: %v", err)
		}
		links[0].Cut()
		links[1].Cut()
		if err := b.Create(t.Context(), rec); err == nil || apierrors.IsAlreadyExists(err) {
			t.Errorf("Create with two nodes down: %v", err)
		}
		if _, _, err := b.Get(t.Context()); err == nil || apierrors.IsNotFound(err) {
			t.Errorf("Get with two nodes down: %v", err)
		}
	})
}

// A record left by an earlier process with the same identity is somebody else's.
func TestSameIdentityTwice(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		old := newCandidate(t, s.manager(t), "pod-0")
		if err := old.lock.Create(t.Context(), rl.LeaderElectionRecord{LeaseDurationSeconds: 15}); err != nil {
			t.Fatal(err)
		}
		young := newCandidate(t, s.manager(t), "pod-0").run(t)
		time.Sleep(leaseDuration - time.Second)
		if young.elector.IsLeader() || len(young.epochs()) > 0 {
			t.Fatal("the new process leads by its name")
		}
		time.Sleep(3 * retryPeriod)
		if !young.elector.IsLeader() || len(young.epochs()) != 1 {
			t.Fatal("the new process does not lead after the old one's lease")
		}
	})
}

// With durations below or between whole seconds a healthy leader is never taken over.
func TestDurationsThatAreNotWholeSeconds(t *testing.T) {
	for _, d := range []time.Duration{900 * time.Millisecond, 1900 * time.Millisecond} {
		inBoth(t, func(t *testing.T, s servers) {
			exact := func(cfg *resourcelock.Config, lec *leaderelection.LeaderElectionConfig) {
				cfg.LeaseDuration = d
				lec.LeaseDuration, lec.RenewDeadline, lec.RetryPeriod = d, d-10*time.Millisecond, d/4
			}
			a := newCandidate(t, s.manager(t), "a", exact).run(t)
			time.Sleep(d / 10)
			b := newCandidate(t, s.manager(t), "b", exact).run(t)
			time.Sleep(time.Minute)
			if len(a.epochs()) != 1 || a.stops() != 0 || len(b.epochs()) != 0 {
				t.Fatalf("in a minute a started %v and stopped %d times, b started %v", a.epochs(), a.stops(), b.epochs())
			}
			a.stop()
			<-a.done
			time.Sleep(d)
			if len(b.epochs()) != 1 {
				t.Fatal("b did not take over")
			}
		})
	}
}
