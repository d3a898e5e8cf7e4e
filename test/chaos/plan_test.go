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

// plan draws what goes wrong: one thing at a time with each candidate, with each server, and with the network of somebody,
// or such that the leader is on one side and all others are on another. Now and then all servers restart at once.
func (c *cluster) plan(r *rand.Rand, jumps bool) []step {
	var steps []step
	draw := func(rest, longest time.Duration, faults ...func() fault) {
		for at := between(r, 0, 2*ttl); at < length; at += between(r, ttl/2, rest) {
			f := faults[r.IntN(len(faults))]()
			until := min(length, at+between(r, ttl/20, longest))
			steps = append(steps, step{at, f.what, f.strike}, step{until, f.what + ": over", f.heal})
			at = until
		}
	}
	for _, cand := range c.candidates {
		draw(6*ttl, 2*ttl, c.candidateFaults(cand)...)
	}
	for i, s := range c.servers { // the more there are, the less goes wrong with each: a majority is well often enough
		draw(time.Duration(3+len(c.servers))*ttl, 2*ttl, c.serverFaults(r, i, s, jumps)...)
	}
	draw(2*ttl, 3*ttl, func() fault { return c.cutOff(r) })
	draw(2*ttl, 3*ttl, func() fault { return c.partition(r) })
	draw(8*ttl, ttl, func() fault { return fault{"all servers restart", c.restartAll, func() {}} })
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

// restartAll is a power cut.
func (c *cluster) restartAll() {
	for _, s := range c.servers {
		s.Kill()
	}
	for _, s := range c.servers {
		s.Restart()
	}
}

// cutOff draws what goes wrong between a candidate and some of the servers.
func (c *cluster) cutOff(r *rand.Rand) fault {
	cand, set := c.candidates[r.IntN(len(c.candidates))], c.someServers(r)
	where := fmt.Sprintf("between candidate %d and servers %0*b", cand.number, len(c.servers), set)
	return networkFault(r, where, func() []*redistest.Proxy { return cand.links(set) })
}

// partition draws what goes wrong between who leads then and some of the servers, and between all others and the rest.
func (c *cluster) partition(r *rand.Rand) fault {
	set := c.someServers(r)
	where := fmt.Sprintf("between the leader and servers %0*b, others and the rest", len(c.servers), set)
	return networkFault(r, where, func() (links []*redistest.Proxy) {
		leader := c.leader()
		for _, cand := range c.candidates {
			if cand == leader {
				links = append(links, cand.links(set)...)
			} else {
				links = append(links, cand.links(^set)...)
			}
		}
		return links
	})
}

// someServers draws a set of servers, as bits.
func (c *cluster) someServers(r *rand.Rand) uint { return uint(1 + r.IntN(1<<len(c.servers)-1)) }

// links returns the candidate's links to the servers of a set.
func (cand *contender) links(set uint) (links []*redistest.Proxy) {
	for i, p := range cand.proxies {
		if set>>i&1 == 1 {
			links = append(links, p)
		}
	}
	return links
}

// networkFault draws what goes wrong on some links, which are asked for when it happens.
func networkFault(r *rand.Rand, where string, which func() []*redistest.Proxy) fault {
	dir := []redistest.Direction{redistest.ToServer, redistest.ToClient, redistest.Both}[r.IntN(3)]
	d := between(r, ttl/100, ttl/2)
	kinds := []struct {
		what         string
		strike, heal func(*redistest.Proxy)
	}{
		{"held", func(p *redistest.Proxy) { p.Hold(dir) }, func(p *redistest.Proxy) { p.Release(dir) }},
		{"lost", func(p *redistest.Proxy) { p.Drop(dir) }, func(p *redistest.Proxy) { p.Release(dir) }},
		{"refused", (*redistest.Proxy).Refuse, (*redistest.Proxy).Accept},
		{"cut once", (*redistest.Proxy).Cut, (*redistest.Proxy).Accept},
		{"cut at an answer", func(p *redistest.Proxy) { p.CutOnReply("{/chaos}") }, (*redistest.Proxy).Accept},
		{fmt.Sprint("late by ", d), func(p *redistest.Proxy) { p.Delay(dir, d) }, func(p *redistest.Proxy) { p.Delay(dir, 0) }},
	}
	kind := kinds[r.IntN(len(kinds))]
	var links []*redistest.Proxy
	each := func(do func(*redistest.Proxy)) {
		for _, p := range links {
			do(p)
		}
	}
	return fault{
		fmt.Sprintf("traffic is %s %s", kind.what, where),
		func() { links = which(); each(kind.strike) },
		func() { each(kind.heal) },
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
