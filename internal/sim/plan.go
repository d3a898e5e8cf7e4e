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
	"math/bits"
	"math/rand/v2"
	"strings"
	"time"
)

// plan is everything that a seed fixes.
type plan struct {
	seed       uint64
	nodes      int
	candidates int
	electors   set // of the candidates; the others use redlock by itself
	agreed     bool
	floor      bool // candidates ask for the highest token that the resource has seen
	ttl        time.Duration
	timeout    time.Duration // OperationTimeout
	latency    time.Duration // the longest that a message is under way when nothing is wrong
	renewal    time.Duration // between two renewals
	retries    int           // of the go-redis clients
	fast       float64       // how much faster the clocks of the nodes run
	length     time.Duration // of the time with faults
	faults     []fault
}

// fault is one thing that goes wrong. It is over before the faulty time is.
type fault struct {
	what              string
	from, to          time.Duration
	nodes, candidates set // whose links fail
	kind              faultKind
	dirs              [2]bool
	delay             time.Duration
	act               action
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

// set is a set of small numbers.
type set uint

func one(i int) set          { return 1 << i }
func all(n int) set          { return 1<<n - 1 }
func (s set) has(i int) bool { return s>>i&1 == 1 }

// some draws a set of some of n, at least one.
func some(r *rand.Rand, n int) set { return set(1 + r.IntN(1<<n-1)) }

func (s set) String() string {
	var members []string
	for ; s != 0; s &= s - 1 {
		members = append(members, fmt.Sprint(bits.TrailingZeros(uint(s))))
	}
	return strings.Join(members, ",")
}

func (f fault) String() string {
	s := fmt.Sprintf("%10v to %10v  %-14s nodes %v", f.from.Round(time.Millisecond), f.to.Round(time.Millisecond), f.what, f.nodes)
	if f.kind != none {
		s += fmt.Sprintf("; candidates %v", f.candidates)
	}
	if f.dirs != [2]bool{} {
		s += fmt.Sprintf("; to nodes %v, from nodes %v", f.dirs[toServer], f.dirs[toClient])
	}
	if f.delay > 0 {
		s += fmt.Sprintf("; by %v", f.delay)
	}
	return s
}

// maxTTL is the longest TTL that a candidate of the plan ever asks for.
func (p plan) maxTTL() time.Duration { return p.ttl * 3 / 2 }

// grace is the time in which a network without trouble lets everybody tidy up.
func (p plan) grace() time.Duration { return 3*p.timeout + 100*time.Millisecond }

// fenced reports whether leases carry a token that grows.
func (p plan) fenced() bool { return p.nodes == 1 || p.agreed }

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d nodes, %d candidates, of which electors: [%v]\n", p.seed, p.nodes, p.candidates, p.electors)
	fmt.Fprintf(&b, "TTL %v, renewals every %v, operation timeout %v, latency up to %v, %d client retries, clocks %.1f%% fast\n",
		p.ttl, p.renewal, p.timeout, p.latency, p.retries, 100*p.fast)
	fmt.Fprintf(&b, "tokens agreed on %v, above a floor %v; %v of faults:\n", p.agreed, p.floor, p.length)
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
		nodes:      []int{1, 1, 3, 3, 3, 5}[r.IntN(6)],
		candidates: []int{2, 2, 3, 3, 4}[r.IntN(5)],
		ttl:        time.Duration(300+r.IntN(2700)) * time.Millisecond,
		retries:    []int{-1, 3}[r.IntN(2)],
		fast:       []float64{0, 0, 0.009}[r.IntN(3)],
		agreed:     r.IntN(2) == 0,
	}
	p.electors = []set{0, all(p.candidates), all(p.candidates), some(r, p.candidates)}[r.IntN(4)]
	p.timeout = p.ttl / time.Duration(5+r.IntN(8))
	p.latency = []time.Duration{2 * time.Millisecond, 2 * time.Millisecond, p.timeout / 10, p.timeout / 4}[r.IntN(4)]
	p.renewal = p.ttl / time.Duration(3+r.IntN(4))
	p.length = p.ttl * time.Duration(6+r.IntN(5)) / 2
	for range 1 + r.IntN(5) {
		f := p.drawFault(r)
		p.floor = p.floor || f.act == restartEmpty // who loses the counter must be told
		p.faults = append(p.faults, f)
	}
	return p
}

func (p plan) drawFault(r *rand.Rand) fault {
	f := fault{nodes: one(r.IntN(p.nodes)), candidates: one(r.IntN(p.candidates))}
	f.from = time.Duration(r.Int64N(int64(p.length * 3 / 4)))
	f.to = f.from + time.Duration(r.Int64N(int64(2*p.ttl)))
	if r.IntN(3) == 0 {
		f.candidates = all(p.candidates)
	}
	if r.IntN(6) == 0 {
		f.nodes = all(p.nodes)
	}
	dirs := [][2]bool{{true, false}, {false, true}, {true, true}}[r.IntN(3)]
	switch r.IntN(16) {
	case 0, 1, 2:
		f.what, f.kind, f.dirs = "silent", silent, dirs
	case 3, 4:
		f.what, f.kind, f.dirs = "slow", slow, dirs
		f.delay = time.Duration(r.Int64N(int64(p.timeout * 3 / 2)))
		if r.IntN(2) == 0 {
			f.nodes = all(p.nodes)
		}
	case 5:
		f.what, f.kind = "refused", refused
	case 6, 7:
		f.what, f.kind = "partition", refused
		f.nodes, f.candidates = some(r, p.nodes), some(r, p.candidates)
		if r.IntN(2) == 0 {
			f.kind, f.dirs = silent, [2]bool{true, true}
		}
	case 8:
		// A process that stands still sends nothing and hears nothing; then it hears everything at once.
		f.what, f.kind, f.dirs = "pause", silent, [2]bool{true, true}
		f.nodes, f.candidates = all(p.nodes), one(r.IntN(p.candidates))
	case 9:
		f.what, f.kind, f.act, f.candidates = "restart", refused, restart, all(p.candidates)
	case 10:
		f.what, f.kind, f.act, f.candidates = "restart empty", refused, restartEmpty, all(p.candidates)
		f.to = f.from + p.maxTTL()*5/4
	case 11, 12:
		f.what, f.act, f.nodes, f.to = "admin deletes", adminDelete, all(p.nodes), f.from
	case 13:
		f.what, f.act, f.to = "script flush", forget, f.from
	case 14, 15:
		f.what, f.kind, f.dirs = "flaky", flaky, dirs
		if r.IntN(2) == 0 {
			f.nodes = all(p.nodes)
		}
	}
	f.to = min(f.to, p.length)
	if f.act == restartEmpty && f.to-f.from < p.maxTTL() {
		f.what, f.act = "restart", restart
	}
	return f
}
