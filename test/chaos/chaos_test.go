//go:build chaos && linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ndyakov/go-redlock/internal/redistest"
)

// TestChaos expects one leader at a time, and rising epochs, whatever goes wrong with processes, servers and network.
func TestChaos(t *testing.T) { plans(t, false) }

// TestChaosWithClocks has the servers' wall clocks jump as well. That can let a lease expire early, so two may lead at a
// time: then the epochs are what a protected resource can tell them by, and they must rise all the same.
func TestChaosWithClocks(t *testing.T) { plans(t, true) }

func plans(t *testing.T, jumps bool) {
	library := wallclock(t)
	from, to := uint64(1), *seeds
	if *seed != 0 {
		from, to = *seed, *seed
	}
	for n := from; n <= to; n++ {
		t.Run(fmt.Sprintf("seed=%d", n), func(t *testing.T) {
			t.Parallel()
			try(t, n, library, jumps)
		})
	}
}

// try runs one plan.
func try(t *testing.T, seed uint64, library string, jumps bool) {
	r := rand.New(rand.NewPCG(seed, 0))
	c := newCluster(t, []int{3, 1, 5, 3}[seed%4], library)
	c.awaitLeader()
	steps := c.plan(r, jumps)
	c.run(steps)
	c.awaitLeader()
	c.awaitEnd()
	if err := c.history.check(!jumps); err != nil {
		t.Error(err)
	}
	terms, looks := c.history.count(acquires), c.history.count(leads)
	t.Logf("%d servers, %d faults: %d terms, %d looks", len(c.servers), len(steps)/2, terms, looks)
	if terms < 2 || looks < 50 {
		t.Error("there was next to nothing to judge")
	}
	if t.Failed() {
		t.Logf("timeline:\n%s", c.history)
	}
}

// TestWallclock makes sure that the clock of a server does jump: the key expires when the clock says so.
func TestWallclock(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, wallclock(t))
	s, ctx, key := c.servers[0], context.Background(), redistest.Key(t)
	left := func() time.Duration { return s.Client().PTTL(ctx, key).Val().Round(10 * time.Second) }
	if err := s.Client().Set(ctx, key, "x", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	for _, jump := range []time.Duration{30 * time.Second, -30 * time.Second, 0} {
		s.set(t, jump)
		if got, want := left(), time.Minute-jump; got != want {
			t.Errorf("a clock put off by %v leaves the key %v, not %v", jump, got, want)
		}
	}
	s.set(t, time.Hour)
	if n := s.Client().Exists(ctx, key).Val(); n != 0 {
		t.Error("the key has outlived its hour")
	}
}
