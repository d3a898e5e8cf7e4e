//lint:file-ignore SA1019 MultiLock is the way to move from one lock to another without two leaders

package resourcelock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// old and new are the two homes of a lease that moves: a single Redis, and three of them.
type move struct{ old, new servers }

func newMove(t *testing.T) move { return move{newServers(t, 1), newServers(t, 3)} }

func lockAt(t *testing.T, s servers, identity string) *resourcelock.Lock {
	t.Helper()
	l, err := resourcelock.New(resourcelock.Config{Manager: s.manager(t), Namespace: "ns", Name: "name", Identity: identity, QuorumFencing: true})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// both returns an option for a candidate that needs both leases.
func (m move) both(t *testing.T, identity string) option {
	return over(&rl.MultiLock{Primary: lockAt(t, m.old, identity), Secondary: lockAt(t, m.new, identity)})
}

func over(lock rl.Interface) option {
	return func(_ *resourcelock.Config, lec *leaderelection.LeaderElectionConfig) { lec.Lock = lock }
}

func (m move) candidate(t *testing.T, name string, o option) *candidate {
	return newCandidate(t, m.old.manager(t), name, o) // its own lock is not used
}

func TestMultiLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMove(t)
		a := m.candidate(t, "a", m.both(t, "a")).run(t)
		time.Sleep(time.Second)
		b := m.candidate(t, "b", m.both(t, "b")).run(t)
		time.Sleep(leaseDuration)
		if theLeader(t, a, b) != a || b.elector.GetLeader() != "a" || !m.old.hasLease() || !m.new.hasLease() {
			t.Fatalf("b sees %q; leases: %v and %v", b.elector.GetLeader(), m.old.hasLease(), m.new.hasLease())
		}
		a.stop()
		<-a.done
		time.Sleep(3 * retryPeriod)
		if !b.elector.IsLeader() || a.stops() != 1 {
			t.Fatalf("b leads: %v; a stopped %d times", b.elector.IsLeader(), a.stops())
		}
		time.Sleep(time.Minute)
		if len(b.epochs()) != 1 || b.stops() != 0 {
			t.Fatalf("b started %d times and stopped %d times", len(b.epochs()), b.stops())
		}
	})
}

// MultiLock writes its primary's identity into both records: they agree also if the secondary was given another one.
func TestMultiLockWithTwoIdentities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMove(t)
		both := &rl.MultiLock{Primary: lockAt(t, m.old, "a"), Secondary: lockAt(t, m.new, "another")}
		a := m.candidate(t, "a", over(both)).run(t)
		time.Sleep(leaseDuration)
		if r := get(t, both); !a.elector.IsLeader() || r.HolderIdentity != "a" {
			t.Errorf("leads: %v; MultiLock says %q", a.elector.IsLeader(), r.HolderIdentity)
		}
	})
}

// Either lease of a MultiLock is lost: the leader stops, and does not slip into another term.
func TestMultiLockLosesOneLease(t *testing.T) {
	for _, primary := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := newMove(t)
			a := m.candidate(t, "a", m.both(t, "a")).run(t)
			time.Sleep(time.Second)
			if primary {
				m.old.deleteLease()
			} else {
				m.new.deleteLease()
			}
			start := time.Now()
			<-a.done
			if d := time.Since(start); d > renewDeadline+retryPeriod {
				t.Errorf("primary %v: a led on for %v", primary, d)
			}
			if len(a.epochs()) != 1 || a.stops() != 1 {
				t.Errorf("primary %v: started %d times, stopped %d times", primary, len(a.epochs()), a.stops())
			}
			a.run(t)
			time.Sleep(3 * leaseDuration) // MultiLock has not released the other one: it runs out
			if !a.elector.IsLeader() {
				t.Errorf("primary %v: it does not lead again", primary)
			}
		})
	}
}

// A MultiLock got its primary and not its secondary, which somebody else holds: it does not lead, and
// that term does not bar it for ever.
func TestMultiLockThatGotOnlyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMove(t)
		other := m.new.manager(t).NewLock("{ns/name}:lease", redlock.WithExpiry(time.Hour))
		if err := other.TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
		primary := lockAt(t, m.old, "a")
		a := m.candidate(t, "a", over(&rl.MultiLock{Primary: primary, Secondary: lockAt(t, m.new, "a")}))
		// As when the other was faster between its look at both and its Create.
		if err := primary.Create(t.Context(), recordOf(primary, leaseDuration)); err != nil {
			t.Fatal(err)
		}
		a.run(t)
		time.Sleep(2 * time.Minute)
		if len(a.epochs()) > 0 {
			t.Fatal("a leads without the secondary")
		}
		if err := other.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*leaseDuration + 3*retryPeriod)
		if !a.elector.IsLeader() || len(a.epochs()) != 1 {
			t.Errorf("a leads: %v, and started %d times", a.elector.IsLeader(), len(a.epochs()))
		}
	})
}

// Rolling updates from one lease to another and back: one replica at a time is replaced by one of the next version,
// and never do two lead.
func TestMultiLockMovesALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMove(t)
		onlyOld := func(id string) option { return over(lockAt(t, m.old, id)) }
		onlyNew := func(id string) option { return over(lockAt(t, m.new, id)) }
		both := func(id string) option { return m.both(t, id) }

		var running []*candidate
		leaders := func() (n int) {
			for _, c := range running {
				if c.elector.IsLeader() {
					n++
				}
			}
			return n
		}
		settle := func(what string) {
			t.Helper()
			for start := time.Now(); time.Since(start) < 3*leaseDuration; time.Sleep(10 * time.Millisecond) {
				if n := leaders(); n > 1 {
					t.Fatalf("%s: %d leaders", what, n)
				}
			}
			if leaders() != 1 {
				t.Fatalf("%s: nobody leads", what)
			}
		}
		versions := []struct {
			name string
			lock func(id string) option
		}{{"old", onlyOld}, {"both", both}, {"new", onlyNew}, {"both again", both}, {"old again", onlyOld}}
		for _, v := range versions {
			for i, id := range []string{"a", "b"} {
				if i < len(running) && len(running) == 2 {
					running[0].stop()
					<-running[0].done
					running = running[1:]
				}
				running = append(running, m.candidate(t, id+" "+v.name, v.lock(id+" "+v.name)).run(t))
				settle(v.name + ", " + id)
			}
		}
	})
}
