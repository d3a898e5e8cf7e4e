package redlock_test

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// isAgree tells the second phase of a quorum-fenced acquisition from everything else.
func isAgree(cmd string, args []string) bool { return strings.HasPrefix(cmd, "EVAL") && len(args) == 7 }

// cutBeforeAgreement cuts the link when the second phase of an acquisition comes to its server, which does not execute it.
func cutBeforeAgreement(s *server.Server, l *bubble.Link) {
	var done atomic.Bool
	s.SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
		if !isAgree(cmd, args) || done.Swap(true) {
			return false
		}
		l.Cut()
		return true
	})
}

// warm has the party connect, and the servers learn the scripts.
func (p *party) warm(t *testing.T) {
	t.Helper()
	must(t, p.NewLock("warm", redlock.WithQuorumFencing("warm:counter"), redlock.WithExpiry(time.Second)).TryLock(t.Context()))
	time.Sleep(2 * time.Second)
}

func TestQuorumTokensGrowByOne(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(modeOf(n), func(t *testing.T) {
			m := newSite(t, n).manager(t, redlock.Config{})
			key, counter := redistest.Key(t), redistest.Key(t)
			for i := uint64(1); i <= 5; i++ {
				l := m.NewLock(key, redlock.WithQuorumFencing(counter), redlock.WithMetadata("who: me"))
				must(t, l.TryLock(t.Context()))
				if l.FencingToken() != i {
					t.Fatalf("token %d, want %d", l.FencingToken(), i)
				}
				h, held, err := m.Holder(t.Context(), key)
				if !held || err != nil || h.FencingToken != i || h.Metadata != "who: me" || h.TTL > 30*time.Second {
					t.Errorf("Holder says %+v, %v, %v", h, held, err)
				}
				if last, err := m.LastToken(t.Context(), counter); last != i || err != nil {
					t.Errorf("LastToken says %d, %v", last, err)
				}
				must(t, l.Extend(t.Context(), time.Minute))
				must(t, l.Unlock(t.Context()))
			}
		})
	}
}

// The nodes' counters differ, as after failures: the token exceeds those of the majority that grants.
func TestQuorumTokenExceedsTheMajority(t *testing.T) {
	for down, want := range map[int]uint64{-1: 10, 0: 10, 1: 6, 2: 10} {
		virtual(t, 3, func(t *testing.T, w world) {
			for i, v := range []string{"2", "9", "5"} {
				must(t, w[i].Set("f", v))
			}
			p := w.party(t, redlock.Config{})
			if down >= 0 {
				p.links[down].Cut()
			} else {
				p.links[0].Delay(bubble.Both, time.Millisecond) // so that it is known which majority it is
			}
			l := p.NewLock("k", redlock.WithQuorumFencing("f"))
			must(t, l.TryLock(t.Context()))
			if l.FencingToken() != want {
				t.Errorf("without node %d: token %d, want %d", down, l.FencingToken(), want)
			}
		})
	}
}

// A node that grants later than the majority, and has a higher counter, keeps that; it is exceeded as soon as the node
// belongs to a majority.
func TestQuorumTokenOfALateNodeStays(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		must(t, w[2].Set("f", "100"))
		p := w.party(t, redlock.Config{})
		p.links[2].Delay(bubble.ToServer, 20*time.Millisecond)
		l := p.NewLock("k", redlock.WithQuorumFencing("f"))
		must(t, l.TryLock(t.Context()))
		time.Sleep(time.Second)
		if v, _ := w[2].Get("f"); l.FencingToken() != 1 || v != "100" || w.holding("k") != 3 {
			t.Errorf("token %d, late counter %s, lease on %d nodes", l.FencingToken(), v, w.holding("k"))
		}
		if h, held, err := p.Holder(t.Context(), "k"); !held || err != nil || h.FencingToken != 1 {
			t.Errorf("Holder says %+v, %v, %v", h, held, err)
		}
		must(t, l.Unlock(t.Context()))
		p.links[2].Delay(bubble.ToServer, 0)
		p.links[0].Cut()
		must(t, l.TryLock(t.Context()))
		if l.FencingToken() != 101 {
			t.Errorf("token %d, want 101", l.FencingToken())
		}
	})
}

// A node that grants late, with a counter that is lower, stores the token as well.
func TestQuorumTokenReachesALateNode(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		p := w.party(t, redlock.Config{})
		p.links[2].Delay(bubble.ToServer, 20*time.Millisecond)
		must(t, p.NewLock("k", redlock.WithQuorumFencing("f")).TryLock(t.Context()))
		time.Sleep(time.Second)
		if v, _ := w[2].Get("f"); v != "1" {
			t.Errorf("its counter is %q", v)
		}
	})
}

// Between the two phases the leases vanish, and another acquires: the first must not get a token, least of all a
// greater one.
func TestQuorumTokenIsNotStoredForALeaseThatIsGone(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		a := w.party(t, redlock.Config{Attempts: 1})
		b := w.party(t, redlock.Config{Attempts: 1}).NewLock("k", redlock.WithQuorumFencing("f"))
		a.warm(t)
		l := a.NewLock("k", redlock.WithQuorumFencing("f"))
		a.each(func(l *bubble.Link) { l.Delay(bubble.ToServer, 10*time.Millisecond) })
		async(t, func() {
			time.Sleep(15 * time.Millisecond) // the first phase has been executed, the second is on its way
			for _, s := range w {
				if !s.Del("k") {
					t.Error("the first phase has not come to pass")
				}
			}
			if err := b.TryLock(context.Background()); err != nil || b.FencingToken() != 1 {
				t.Errorf("token %d, error %v", b.FencingToken(), err)
			}
		})
		err := l.TryLock(t.Context())
		wantIs(t, err, redlock.ErrNotAcquired)
		if l.FencingToken() != 0 || l.Held() || !b.Held() {
			t.Errorf("token %d; held: %v, by the other: %v", l.FencingToken(), l.Held(), b.Held())
		}
	})
}

// Whoever has not agreed on its token yet holds nothing, and if it vanishes the TTL clears up after it.
func TestLeaseWithoutItsQuorumTokenIsNotHeld(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		a, b := w.party(t, redlock.Config{Attempts: 1}), w.party(t, redlock.Config{})
		a.warm(t)
		for i, s := range w {
			cutBeforeAgreement(s.Server(), a.links[i])
		}
		wantIs(t, a.NewLock("k", redlock.WithQuorumFencing("f"), redlock.WithExpiry(5*time.Second)).TryLock(t.Context()), redlock.ErrNotAcquired)
		if h, held, err := b.Holder(t.Context(), "k"); held || err != nil {
			t.Errorf("Holder says %+v, %v, %v", h, held, err)
		}
		begin := time.Now()
		l := b.NewLock("k", redlock.WithQuorumFencing("f"))
		must(t, l.Lock(t.Context()))
		if d := time.Since(begin); d > 6*time.Second || l.FencingToken() == 0 {
			t.Errorf("token %d after %v", l.FencingToken(), d)
		}
	})
}

// A minority that fails between the phases does no harm, and a majority that does fails the acquisition.
func TestNodesThatFailBetweenThePhases(t *testing.T) {
	for failing := 1; failing <= 2; failing++ {
		virtual(t, 3, func(t *testing.T, w world) {
			p := w.party(t, redlock.Config{Attempts: 1})
			p.warm(t)
			for i := range failing {
				cutBeforeAgreement(w[i].Server(), p.links[i])
				p.links[i].Delay(bubble.ToServer, time.Millisecond) // the others have answered before
			}
			l := p.NewLock("k", redlock.WithQuorumFencing("f"))
			err := l.TryLock(t.Context())
			if failing == 1 {
				if err != nil || l.FencingToken() != 1 {
					t.Errorf("token %d, error %v", l.FencingToken(), err)
				}
				return
			}
			q := quorumError(t, err)
			wantIs(t, err, redlock.ErrNotAcquired)
			if len(q.NodeErrors) != 2 || q.Required != 2 || q.Succeeded != 1 {
				t.Errorf("error is %v", err)
			}
			p.each((*bubble.Link).Mend)
			time.Sleep(40 * time.Second)
			w.wantFree(t, "k")
		})
	}
}

// A lease that is put back on a node that has lost its data brings the token along.
func TestHealingRestoresTheQuorumToken(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		l := w.party(t, redlock.Config{}).NewLock("k", redlock.WithQuorumFencing("f"))
		for range 3 {
			must(t, l.TryLock(t.Context()))
			must(t, l.Unlock(t.Context()))
		}
		must(t, l.TryLock(t.Context()))
		w[1].FlushAll()
		must(t, l.Extend(t.Context(), time.Minute))
		time.Sleep(time.Second)
		if v, _ := w[1].Get("f"); v != "4" || w.holding("k") != 3 {
			t.Errorf("its counter is %q, the lease is on %d nodes", v, w.holding("k"))
		}
	})
}

func TestQuorumTokenExceedsTheFloor(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		floor := uint64(0)
		l := w.party(t, redlock.Config{}).NewLock("k", redlock.WithQuorumFencing("f"),
			redlock.WithFenceFloor(func(context.Context) (uint64, error) { return floor, nil }))
		for _, step := range []struct{ floor, want uint64 }{{0, 1}, {100, 101}, {50, 102}, {1<<53 + 1, 1<<53 + 2}, {math.MaxInt64 - 1, math.MaxInt64}} {
			floor = step.floor
			must(t, l.TryLock(t.Context()))
			if l.FencingToken() != step.want {
				t.Errorf("with floor %d the token is %d, want %d", floor, l.FencingToken(), step.want)
			}
			must(t, l.Unlock(t.Context()))
		}
		for _, floor = range []uint64{0, math.MaxInt64, math.MaxUint64} {
			err := l.TryLock(t.Context())
			wantIs(t, err, redlock.ErrNotAcquired)
			if err == nil || !strings.Contains(err.Error(), "BADCOUNTER") {
				t.Errorf("floor %d: error is %v", floor, err)
			}
		}
		w.wantFree(t, "k")
	})
}

func TestQuorumFencingNeedsCountersOnAMajority(t *testing.T) {
	for bad := 1; bad <= 2; bad++ {
		s := newSite(t, 3)
		l := s.manager(t, redlock.Config{}).NewLock(redistest.Key(t), redlock.WithQuorumFencing("f"))
		for i := range bad {
			must(t, s.servers[i].Client().Set(t.Context(), "f", "nonsense", 0).Err())
		}
		err := l.TryLock(t.Context())
		if bad == 1 {
			must(t, err)
			continue
		}
		wantIs(t, err, redlock.ErrNotAcquired)
		if err == nil || !strings.Contains(err.Error(), "BADCOUNTER") {
			t.Errorf("error is %v", err)
		}
	}
}

func TestOneWayOfFencingAtATime(t *testing.T) {
	virtual(t, 1, func(t *testing.T, w world) {
		m := w.party(t, redlock.Config{})
		for words, opts := range map[string][]redlock.LockOption{
			`redlock: WithQuorumFencing is "g": WithFencingToken is given as well`: {redlock.WithFencingToken("f"), redlock.WithQuorumFencing("g")},
			`redlock: WithQuorumFencing is "": the counter needs a key`:            {redlock.WithQuorumFencing("")},
			`redlock: WithQuorumFencing is "k": the counter needs another key`:     {redlock.WithQuorumFencing("k")},
		} {
			if err := m.NewLock("k", opts...).TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("error is %v, want %s", err, words)
			}
		}
	})
}

// Whatever the clocks do: leases end early on some nodes, by an administrator's hand or a clock that jumps, so that several
// hold one at a time. Tokens still differ, and grow in the order in which acquisitions follow each other.
func TestQuorumTokensGrowWhateverTheClocksDo(t *testing.T) {
	for seed := range uint64(20) {
		virtual(t, 3, func(t *testing.T, w world) {
			random := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			highest, acquired := uint64(0), 0
			owner := map[uint64]int{}
			for i := range 4 {
				p := w.party(t, redlock.Config{Attempts: 1})
				p.each(func(l *bubble.Link) {
					l.Delay(bubble.ToServer, time.Duration(random.IntN(8))*time.Millisecond)
					l.Delay(bubble.ToClient, time.Duration(random.IntN(8))*time.Millisecond)
				})
				pauses := rand.New(rand.NewPCG(seed, uint64(i)+2))
				async(t, func() {
					l := p.NewLock("k", redlock.WithQuorumFencing("f"))
					for range 30 {
						mu.Lock()
						floor := highest
						mu.Unlock()
						if l.TryLock(context.Background()) == nil {
							mu.Lock()
							token := l.FencingToken()
							if other, taken := owner[token]; taken || token <= floor {
								t.Errorf("seed %d: token %d, which %d has had, after %d", seed, token, other, floor)
							}
							owner[token], highest = i, max(highest, token)
							acquired++
							mu.Unlock()
							time.Sleep(time.Duration(pauses.IntN(10)) * time.Millisecond)
							_ = l.Unlock(context.Background())
						}
						time.Sleep(time.Duration(pauses.IntN(20)) * time.Millisecond)
					}
				})
			}
			for range 300 {
				time.Sleep(time.Duration(random.IntN(5)) * time.Millisecond)
				w[random.IntN(3)].Del("k")
			}
			time.Sleep(5 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			if acquired < 10 {
				t.Errorf("seed %d: only %d acquisitions", seed, acquired)
			}
		})
	}
}

// A client without Process repeats commands by itself, and sends the text of scripts.
func TestQuorumFencingThroughAPlainNode(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		p := w.party(t, redlock.Config{}, func(c *redis.Client) redlock.Node { return struct{ redlock.Node }{c} })
		l := p.NewLock("k", redlock.WithQuorumFencing("f"))
		for i := uint64(1); i <= 3; i++ {
			must(t, l.TryLock(t.Context()))
			if l.FencingToken() != i {
				t.Errorf("token %d, want %d", l.FencingToken(), i)
			}
			must(t, l.Unlock(t.Context()))
		}
	})
}
