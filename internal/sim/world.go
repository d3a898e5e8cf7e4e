package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

const (
	leaseKey = "{sim}:lease"
	fenceKey = "{sim}:fence"
)

// world is one run of a plan.
type world struct {
	plan  plan
	start time.Time
	nodes []*miniredis.Miniredis
	links [][]*link // by candidate and node
	judge *judge

	mu       sync.Mutex
	timeline []string
}

// run executes the plan and returns what is wrong, or nothing. It must be called in a bubble.
func run(p plan) (timeline string, faults []string) {
	w := &world{plan: p, start: time.Now()}
	w.judge = newJudge(w)
	for range p.nodes {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		w.nodes = append(w.nodes, m)
	}
	for c := range p.candidates {
		w.links = append(w.links, nil)
		for n := range p.nodes {
			w.links[c] = append(w.links[c], w.newLink(c, n))
		}
	}

	ctx, stop := context.WithCancel(context.Background())
	var background, candidates sync.WaitGroup
	for _, f := range p.faults {
		background.Go(func() { w.strike(f) })
	}
	if p.fast > 0 {
		background.Go(func() { w.hurryClocks(ctx) })
	}
	background.Go(func() { w.judge.watch(ctx) })
	for c := range p.candidates {
		candidates.Go(func() { w.candidate(ctx, c) })
	}

	time.Sleep(p.length)
	w.note("all is well again")
	healed := time.Now()
	time.Sleep(w.progressBound())
	w.judge.checkProgress(healed)
	stop()
	candidates.Wait()
	background.Wait()
	time.Sleep(p.maxTTL() + time.Second)
	w.judge.checkNothingIsLeft()
	for _, n := range w.nodes {
		n.Close()
	}
	return w.String(), w.judge.found
}

func (w *world) newLink(c, n int) *link {
	l := &link{
		node:  w.nodes[n],
		rng:   rand.New(rand.NewPCG(w.plan.seed, uint64(1000*c+n))),
		conns: make(map[*conn]struct{}),
	}
	for _, f := range w.plan.faults {
		if f.touches(c, n) && f.to > f.from {
			l.windows = append(l.windows, window{f.kind, w.start.Add(f.from), w.start.Add(f.to), f.dirs, f.delay})
		}
	}
	return l
}

func (f fault) touches(candidate, node int) bool {
	return (f.candidate == -1 || f.candidate == candidate) && (f.node == -1 || f.node == node)
}

// progressBound is the longest time that may pass without an acquisition when nothing is wrong: a candidate works, and
// crashes after it has extended its lease to the longest TTL.
func (w *world) progressBound() time.Duration { return w.plan.ttl*3/2 + w.plan.maxTTL() + w.plan.ttl/2 }

// troubled reports whether some link to node n has a fault now. A node that is cut off for longer than a TTL counts as
// troubled for good: what was sent to it arrives when its sender has every right to believe it expired.
func (w *world) troubled(n int) bool {
	now := time.Now()
	for c := range w.links {
		var cutOff time.Duration
		for _, f := range w.links[c][n].windows {
			cutOff += f.to.Sub(f.from)
			if now.After(f.from) && now.Before(f.to.Add(f.delay)) {
				return true
			}
		}
		if cutOff > w.plan.ttl {
			return true
		}
	}
	return false
}

// strike does what a fault does besides its window.
func (w *world) strike(f fault) {
	time.Sleep(f.from)
	w.note("%s begins (node %d, candidate %d)", f.what, f.node, f.candidate)
	if f.kind == refused {
		w.eachLink(f, (*link).breakAll)
	}
	switch f.act {
	case adminDelete:
		w.judge.deleted()
		w.eachNode(f, func(m *miniredis.Miniredis) { m.Del(leaseKey) })
	case forget:
		w.eachNode(f, flushScripts)
	case restart:
		w.eachNode(f, flushScripts)
	}
	time.Sleep(f.to - f.from)
	if f.act == restartEmpty {
		w.eachNode(f, func(m *miniredis.Miniredis) { m.FlushAll(); flushScripts(m) })
	}
	w.note("%s is over", f.what)
}

func (w *world) eachNode(f fault, do func(*miniredis.Miniredis)) {
	for n, m := range w.nodes {
		if f.node == -1 || f.node == n {
			do(m)
		}
	}
}

func (w *world) eachLink(f fault, do func(*link)) {
	for c := range w.links {
		for n, l := range w.links[c] {
			if f.touches(c, n) {
				do(l)
			}
		}
	}
}

// flushScripts has a server forget the scripts, as a restart does.
func flushScripts(m *miniredis.Miniredis) {
	c := redis.NewClient(bubble.Options(func(context.Context) (net.Conn, error) { return m.Dial() }))
	defer c.Close()
	_ = c.ScriptFlush(context.Background()).Err()
}

// hurryClocks makes the nodes' clocks run fast, within the drift that is allowed for.
func (w *world) hurryClocks(ctx context.Context) {
	step := w.plan.ttl / 20
	for ctx.Err() == nil {
		time.Sleep(step)
		for _, m := range w.nodes {
			m.FastForward(time.Duration(float64(step) * w.plan.fast))
		}
	}
}

// majorityValue returns what a majority of the nodes has stored for the lease, if there is such a value.
func (w *world) majorityValue() string {
	count := make(map[string]int)
	for _, n := range w.nodes {
		if v, err := n.Get(leaseKey); err == nil {
			if count[v]++; count[v] > len(w.nodes)/2 {
				return v
			}
		}
	}
	return ""
}

// note adds a line to the timeline.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timeline = append(w.timeline, fmt.Sprintf("%12v  ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

func (w *world) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.plan.String() + strings.Join(w.timeline, "\n")
}

// newManager returns a manager for a candidate, and how to end it with its clients.
func (w *world) newManager(c int) (*redlock.Manager, func()) {
	var nodes []redlock.Node
	var clients []*redis.Client
	for _, l := range w.links[c] {
		o := bubble.Options(l.dial)
		o.MaxRetries = w.plan.retries
		o.ReadBufferSize, o.WriteBufferSize = 4<<10, 4<<10
		client := redis.NewClient(o)
		clients = append(clients, client)
		nodes = append(nodes, client)
	}
	m, err := redlock.NewWithConfig(redlock.Config{
		Expiry:           w.plan.ttl,
		OperationTimeout: w.plan.timeout,
		RetryDelay:       w.plan.ttl / 10,
	}, nodes...)
	if err != nil {
		panic(err) // the plan asks for what cannot be
	}
	return m, func() {
		_ = m.Close()
		for _, c := range clients {
			_ = c.Close()
		}
	}
}
