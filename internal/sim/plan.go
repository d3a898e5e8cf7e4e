// Package sim runs redlock and election in virtual time against seeded plans of faults, and checks what they
// promise: the real code, the real go-redis client, a real Lua interpreter, in a testing/synctest bubble over
// connections in memory that are slow, silent, or cut.
//
// A seed fixes the plan: nodes, candidates, what each of these does, and when which link fails how. Tokens,
// jitter, and the order of what happens in the same instant are not fixed; a seed that fails once may need a
// few runs to fail again.
package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// plan is everything that a seed fixes.
type plan struct {
	seed       uint64
	nodes      int
	candidates int
	ttl        time.Duration
	timeout    time.Duration // OperationTimeout
	retries    int           // of the go-redis clients
	fast       float64       // how much faster the clocks of the nodes run
	length     time.Duration // of the time with faults
	faults     []fault
}

// fault is one thing that goes wrong. It is over before the faulty time is.
type fault struct {
	what      string
	from, to  time.Duration
	node      int // -1: every node
	candidate int // -1: every candidate
	kind      faultKind
	dirs      [2]bool
	delay     time.Duration
	act       action
}

// action is what a fault does to a server.
type action int

const (
	nothing      action = iota
	restart             // the node is down, and keeps its data
	restartEmpty        // the node is down for longer than any TTL, and comes back without its data
	adminDelete         // somebody deletes the lease on every node
	forget              // SCRIPT FLUSH
)

func (f fault) String() string {
	return fmt.Sprintf("%8v to %8v  %-14s node %2d, candidate %2d, dirs %v, delay %v",
		f.from, f.to, f.what, f.node, f.candidate, f.dirs, f.delay)
}

// maxTTL is the longest TTL that a candidate of the plan ever asks for.
func (p plan) maxTTL() time.Duration { return 2 * p.ttl }

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d nodes, %d candidates, TTL %v, operation timeout %v, %d client retries, clocks %.2f%% fast, %v of faults\n",
		p.seed, p.nodes, p.candidates, p.ttl, p.timeout, p.retries, 100*p.fast, p.length)
	for _, f := range p.faults {
		fmt.Fprintln(&b, "  ", f)
	}
	return b.String()
}

// newPlan draws a plan.
func newPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := plan{
		seed:       seed,
		nodes:      []int{1, 3, 3, 5}[r.IntN(4)],
		candidates: 2 + r.IntN(3),
		ttl:        time.Duration(300+r.IntN(3000)) * time.Millisecond,
		retries:    []int{-1, 3}[r.IntN(2)],
		fast:       []float64{0, 0, 0.009}[r.IntN(3)],
	}
	p.timeout = p.ttl / time.Duration(4+r.IntN(4))
	p.length = p.ttl * time.Duration(3+r.IntN(5))
	for range 1 + r.IntN(6) {
		p.faults = append(p.faults, p.drawFault(r))
	}
	return p
}

func (p plan) drawFault(r *rand.Rand) fault {
	f := fault{node: r.IntN(p.nodes), candidate: r.IntN(p.candidates)}
	f.from = time.Duration(r.Int64N(int64(p.length * 3 / 4)))
	f.to = f.from + time.Duration(r.Int64N(int64(2*p.ttl)))
	if r.IntN(3) == 0 {
		f.candidate = -1
	}
	if r.IntN(6) == 0 {
		f.node = -1
	}
	f.dirs = [][2]bool{{true, false}, {false, true}, {true, true}}[r.IntN(3)]
	switch r.IntN(10) {
	case 0, 1, 2, 3:
		f.what, f.kind = "silent", silent
	case 4, 5:
		f.what, f.kind = "slow", slow
		f.delay = time.Duration(r.Int64N(int64(p.timeout * 2)))
	case 6:
		f.what, f.kind = "refused", refused
	case 7:
		f.what, f.kind, f.act, f.candidate = "restart", refused, restart, -1
	case 8:
		f.what, f.kind, f.act, f.candidate = "restart empty", refused, restartEmpty, -1
		f.to = f.from + p.maxTTL() + p.maxTTL()/4
	case 9:
		f.node, f.candidate, f.to = -1, -1, f.from
		f.what, f.act = "admin deletes", adminDelete
		if r.IntN(2) == 0 {
			f.what, f.act = "script flush", forget
		}
	}
	f.to = min(f.to, max(p.length, f.from))
	if f.act == restartEmpty && f.to-f.from < p.maxTTL() {
		f.what, f.act = "restart", restart
	}
	return f
}
