package election

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestHungLeaderLeavesItsSuccessorAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)
		b := newCandidate(t, h, server, "b").run()
		time.Sleep(time.Second)
		a.link.Silence()
		time.Sleep(20 * time.Second)
		a.link.Mend()
		a.end()
		time.Sleep(time.Minute)
		if !b.IsLeader() || b.Epoch() != 2 || len(h.of("b", "stopped")) != 0 {
			t.Fatalf("b was disturbed: %v", h)
		}
	})
}

func TestFiftyCandidatesTheLeaderKilledEveryTwoSeconds(t *testing.T) {
	const ttl = time.Second
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		var all []*candidate
		for i := range 50 {
			all = append(all, newCandidate(t, h, server, fmt.Sprint(i), func(c *Config) {
				c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = ttl, 700*time.Millisecond, 200*time.Millisecond
			}).run())
		}
		for round := range 30 {
			time.Sleep(2 * time.Second)
			if round%5 == 4 { // as CLIENT KILL does
				for _, c := range all {
					c.link.Break()
				}
			}
			who := leaders(all...)
			if len(who) != 1 {
				t.Fatalf("%v lead: %v", who, h)
			}
			i := slices.IndexFunc(all, func(c *candidate) bool { return c.name == who[0] })
			all[i].link.Silence()
			terms := len(h.of("", "started"))
			time.Sleep(ttl + 200*time.Millisecond)
			if len(h.of("", "started")) == terms {
				t.Fatalf("no takeover within TTL + 200ms: %v", h)
			}
			all[i].link.Mend()
		}
		checkTerms(t, h)
	})
}

// checkTerms checks that epochs strictly grow, and that every leader was stopped before the next one started.
func checkTerms(t *testing.T, h *history) {
	t.Helper()
	started := h.of("", "started")
	for i, e := range started[1:] {
		if e.epoch <= started[i].epoch {
			t.Errorf("epoch %d came after %d", e.epoch, started[i].epoch)
		}
		before := started[i]
		ended := slices.ContainsFunc(h.of(before.who, "stopped"), func(s event) bool {
			return s.at >= before.at && s.at <= e.at
		})
		if !ended {
			t.Errorf("%s started at %v, and %s, who had started at %v, was not stopped", e.who, e.at, before.who, before.at)
		}
	}
}

// Two processes with many elections each lose their Redis, which comes back empty.
func TestManyElectionsSurviveARestartOfRedis(t *testing.T) {
	const shards = 50
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		links, managers := make([]*bubble.Link, 2), make([]*redlock.Manager, 2)
		for p := range links {
			links[p] = bubble.NewLink(server)
			m, err := redlock.NewSingle(links[p].Client(t))
			if err != nil {
				t.Fatal(err)
			}
			managers[p] = m
			t.Cleanup(func() { _ = m.Close() })
		}
		var all [2][]*candidate
		for p := range all {
			for s := range shards {
				all[p] = append(all[p], newCandidate(t, h, server, fmt.Sprint(p), func(c *Config) {
					c.Manager, c.Name = managers[p], fmt.Sprint("shard-", s)
				}).run())
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		links[0].Cut()
		links[1].Cut()
		server.FlushAll()
		time.Sleep(30 * time.Second)
		links[0].Mend()
		links[1].Mend()
		time.Sleep(15 * time.Second)
		for s := range shards {
			if who := leaders(all[0][s], all[1][s]); len(who) != 1 {
				t.Errorf("shard %d is led by %v", s, who)
			} else if e := max(all[0][s].Epoch(), all[1][s].Epoch()); e != 2 {
				t.Errorf("shard %d is led under epoch %d, want 2", s, e)
			}
		}
		for s := range shards {
			all[0][s].stop(nil)
			all[1][s].stop(nil)
		}
	})
}

func TestRedlock(t *testing.T) {
	t.Run("without epochs", func(t *testing.T) { testRedlock(t, false) })
	t.Run("with epochs", func(t *testing.T) { testRedlock(t, true) })
}

func testRedlock(t *testing.T, epochs bool) {
	epoch := func(term uint64) uint64 {
		if epochs {
			return term
		}
		return 0
	}
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		links := make([][]*bubble.Link, 2)
		var cs []*candidate
		second, _ := bubble.Redis(t)
		third, _ := bubble.Redis(t)
		for p, name := range []string{"a", "b"} {
			var nodes []redlock.Node
			links[p] = []*bubble.Link{bubble.NewLink(server), bubble.NewLink(second), bubble.NewLink(third)}
			for _, l := range links[p] {
				nodes = append(nodes, l.Client(t))
			}
			m, err := redlock.NewRedlock(nodes)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = m.Close() })
			cs = append(cs, newCandidate(t, h, server, name, func(c *Config) { c.Manager, c.QuorumFencing = m, epochs }).run())
			time.Sleep(time.Second)
		}
		a, b := cs[0], cs[1]
		if !a.IsLeader() || a.Epoch() != epoch(1) || h.of("a", "started")[0].epoch != epoch(1) {
			t.Fatalf("a does not lead under epoch %d: %v", epoch(1), h)
		}
		links[0][0].Silence() // a minority
		links[1][0].Silence()
		time.Sleep(time.Minute)
		if !a.IsLeader() || b.IsLeader() {
			t.Fatalf("a minority took the lease away: %v", h)
		}
		begin := time.Since(h.start)
		a.stop(nil)
		time.Sleep(time.Second)
		if started := h.of("b", "started"); len(started) != 1 || started[0].at-begin > 50*time.Millisecond {
			t.Fatalf("b did not take over at once, a was stopped at %v: %v", begin, h)
		}
		if held, _, err := b.look(t.Context()); !held || err != nil {
			t.Fatal(held, err)
		}
		if l := b.remembered().last; l.Identity != "b" || l.Transitions != 1 || l.Epoch != epoch(2) {
			t.Errorf("the record says %+v", l)
		}
		links[1][1].Cut() // the majority
		time.Sleep(10*time.Second + time.Millisecond)
		if b.IsLeader() || len(h.of("b", "stopped")) != 1 {
			t.Fatalf("b leads without a majority: %v", h)
		}
		links[1][0].Mend()
		links[1][1].Mend()
	})
}
