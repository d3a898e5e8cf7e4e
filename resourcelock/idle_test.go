package resourcelock_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// A follower that waits costs Redis next to nothing.
func TestAnIdleFollowerSendsAlmostNothing(t *testing.T) {
	s := redistest.Start(t)
	lock := newLock(t, realManager(t, s.Addr()), "idle", "leader")
	rec := recordOf(lock, time.Hour)
	if err := lock.Create(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	waitInGet(t, s, newLock(t, realManager(t, s.Addr()), "idle", "follower"))
	before := calls(t, s)
	time.Sleep(3 * time.Second)
	if n := calls(t, s) - before - 1; n != 0 { // one is the INFO
		t.Errorf("%d commands in 3s of waiting, want none", n)
	}
}

// While the leader renews, a waiting follower sends one command per TTL: with client-go's durations less than
// 0.1 per second.
func TestAFollowerSendsOneCommandPerTTL(t *testing.T) {
	const ttl, renewal, spell = time.Second, 100 * time.Millisecond, 4 * time.Second
	s := redistest.Start(t)
	leader := newLock(t, realManager(t, s.Addr()), "idle", "leader")
	if err := leader.Create(t.Context(), recordOf(leader, ttl)); err != nil {
		t.Fatal(err)
	}
	waitInGet(t, s, newLock(t, realManager(t, s.Addr()), "idle", "follower"))
	before, renewals := calls(t, s), 0
	for begin := time.Now(); time.Since(begin) < spell; time.Sleep(renewal) {
		if err := leader.Update(t.Context(), recordOf(leader, ttl)); err != nil {
			t.Fatal(err)
		}
		renewals++
	}
	const perRenewal = 3 // EVALSHA, GET and PEXPIRE
	n := calls(t, s) - before - 1 - perRenewal*renewals
	if most := int(spell/(ttl-2*renewal)) + 1; n < 1 || n > most {
		t.Errorf("the follower sent %d commands in %v, want 1 to %d", n, spell, most)
	}
}

// waitInGet has the follower wait for the lease's next leader until the test ends.
func waitInGet(t *testing.T, s *redistest.Server, follower *resourcelock.Lock) {
	t.Helper()
	if _, _, err := follower.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	waited := make(chan struct{})
	go func() { defer close(waited); _, _, _ = follower.Get(ctx) }()
	t.Cleanup(func() { cancel(); <-waited })
	for len(s.Client().PubSubChannels(t.Context(), "*").Val()) == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // it looks once more when it is subscribed
}

// calls returns how many commands the server has executed, as INFO commandstats counts.
func calls(t *testing.T, s *redistest.Server) int {
	t.Helper()
	total := 0
	for line := range strings.Lines(s.Client().Info(t.Context(), "commandstats").Val()) {
		if _, rest, ok := strings.Cut(line, ":calls="); ok {
			n, _, _ := strings.Cut(rest, ",")
			i, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			total += i
		}
	}
	return total
}
