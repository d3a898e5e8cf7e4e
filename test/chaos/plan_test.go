//go:build chaos && linux

package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ndyakov/go-redlock/internal/redistest"
)

const length = 12 * ttl // of the time in which things go wrong

// step is something that is done at a time of a plan.
type step struct {
	at   time.Duration
	what string
	do   func()
}

// fault is something that goes wrong, and comes right again.
type fault struct {
	what         string
	strike, heal func()
}

// plan draws what goes wrong: one thing at a time with each candidate, with each server, and with the network around each
// candidate.
func (c *cluster) plan(r *rand.Rand, jumps bool) []step {
	var steps []step
	draw := func(rest time.Duration, faults ...func() fault) {
		for at := between(r, 0, 2*ttl); at < length; at += between(r, ttl/2, rest) {
			f := faults[r.IntN(len(faults))]()
			until := min(length, at+between(r, ttl/20, 2*ttl))
			steps = append(steps, step{at, f.what, f.strike}, step{until, f.what + ": over", f.heal})
			at = until
		}
	}
	for _, cand := range c.candidates {
		draw(4*ttl, c.candidateFaults(cand)...)
		draw(4*ttl, func() fault { return networkFault(r, cand) })
	}
	for i, s := range c.servers { // the more there are, the less goes wrong with each: a majority is well often enough
		draw(time.Duration(3+len(c.servers))*ttl, c.serverFaults(r, i, s, jumps)...)
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return steps
}

func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)))
}

func (c *cluster) candidateFaults(cand *contender) []func() fault {
	restart := func() { c.end(cand); c.start(cand) }
	name := func(what string) string { return fmt.Sprintf("candidate %d is %s", cand.number, what) }
	return []func() fault{
		func() fault { return fault{name("killed"), func() { c.end(cand) }, func() { c.start(cand) }} },
		func() fault { return fault{name("told to end"), func() { c.terminate(cand) }, restart} },
		func() fault {
			return fault{name("frozen"), func() { c.try(cand, cand.Stop) }, func() { c.try(cand, cand.Continue) }}
		},
	}
}

// serverFaults are those of a server: a single one keeps its data, others lose it when they are killed.
func (c *cluster) serverFaults(r *rand.Rand, i int, s *server, jumps bool) []func() fault {
	name := func(what string) string { return fmt.Sprintf("server %d is %s", i, what) }
	faults := []func() fault{
		func() fault { return fault{name("killed"), s.Kill, s.Restart} },
		func() fault { return fault{name("frozen"), s.Stop, s.Continue} },
	}
	if !jumps {
		return faults
	}
	return append(faults, func() fault {
		off := between(r, -2*ttl, 20*ttl)
		return fault{
			name(fmt.Sprintf("put off by %v", off)),
			func() { s.set(c.t, off) },
			func() { s.set(c.t, 0) },
		}
	})
}

// networkFault draws what goes wrong between a candidate and some of the servers.
func networkFault(r *rand.Rand, cand *contender) fault {
	links := slices.DeleteFunc(slices.Clone(cand.proxies), func(*redistest.Proxy) bool { return r.IntN(3) == 0 })
	each := func(do func(*redistest.Proxy)) func() {
		return func() {
			for _, p := range links {
				do(p)
			}
		}
	}
	dir := []redistest.Direction{redistest.ToServer, redistest.ToClient, redistest.Both}[r.IntN(3)]
	release := each(func(p *redistest.Proxy) { p.Release(dir) })
	name := func(what string) string {
		return fmt.Sprintf("network of candidate %d: %d of %d links %s", cand.number, len(links), len(cand.proxies), what)
	}
	switch r.IntN(6) {
	case 0:
		return fault{name("held"), each(func(p *redistest.Proxy) { p.Hold(dir) }), release}
	case 1:
		return fault{name("lossy"), each(func(p *redistest.Proxy) { p.Drop(dir) }), release}
	case 2:
		return fault{name("refused"), each((*redistest.Proxy).Refuse), each((*redistest.Proxy).Accept)}
	case 3:
		return fault{name("cut"), each((*redistest.Proxy).Cut), func() {}}
	case 4:
		return fault{name("cut at an answer"), each(func(p *redistest.Proxy) { p.CutOnReply("{/chaos}") }), func() {}}
	default:
		d := between(r, ttl/100, ttl/2)
		return fault{
			name(fmt.Sprintf("slow by %v", d)),
			each(func(p *redistest.Proxy) { p.Delay(dir, d) }),
			each(func(p *redistest.Proxy) { p.Delay(dir, 0) }),
		}
	}
}

// run does what the plan says, and leaves everything whole.
func (c *cluster) run(steps []step) {
	began := time.Now()
	for _, s := range steps {
		time.Sleep(time.Until(began.Add(s.at)))
		c.history.note("%s", s.what)
		s.do()
	}
}
