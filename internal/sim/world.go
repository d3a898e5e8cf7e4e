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
	"github.com/ndyakov/go-redlock/internal/record"
)

const electionName = "sim"

var keys = record.Keys{Lease: "{/sim}:lease", Epoch: "{/sim}:epoch"}

// world is one run of a plan.
type world struct {
	plan    plan
	verbose bool // the timeline is to tell what the library logs
	begin   time.Time
	nodes   []*miniredis.Miniredis
	links   [][]*link // by candidate and node
	judge   *judge

	overdue chan struct{} // closed when everybody should have ended long ago

	mu       sync.Mutex
	timeline []string
}

// run executes the plan and returns what is wrong, or nothing. It must be called in a bubble.
func run(p plan, verbose bool) (timeline string, faults []string) {
	w := newWorld(p, verbose)
	ctx, stop := context.WithCancel(context.Background())
	over, end := context.WithCancel(context.Background())
	var background, candidates sync.WaitGroup
	for _, f := range p.faults {
		background.Go(func() { w.strike(f) })
	}
	if p.fast > 0 {
		background.Go(func() { w.hurryClocks(over) })
	}
	background.Go(func() { w.judge.watch(over) })
	for c := range p.candidates {
		if p.electors.has(c) {
			candidates.Go(func() { w.elector(ctx, c) })
		} else {
			candidates.Go(func() { w.locker(ctx, c) })
		}
	}

	time.Sleep(p.length)
	w.note("all is well again")
	w.awaitProgress()
	w.note("everybody is stopped")
	stop()
	w.awaitEnd(&candidates)
	end()
	background.Wait()
	time.Sleep(p.maxTTL() + time.Second)
	w.judge.checkNothingIsLeft()
	for _, n := range w.nodes {
		n.Close()
	}
	return w.String(), w.judge.found
}

func newWorld(p plan, verbose bool) *world {
	w := &world{plan: p, verbose: verbose, begin: time.Now(), overdue: make(chan struct{})}
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
	return w
}

// awaitProgress waits until somebody holds the lease, with a renewal since all faults have ended, and with enough time
// to tidy up. It must happen within a TTL, which is what somebody may have left who crashed, and a slack.
func (w *world) awaitProgress() {
	healed := time.Now()
	time.Sleep(max(w.plan.ttl/2, w.plan.grace()))
	bound := w.progressBound()
	for !w.judge.progressed(healed) {
		if time.Since(healed) > bound {
			w.judge.report("nobody has got the lease within %v of the end of all faults", time.Since(healed))
			return
		}
		time.Sleep(w.plan.ttl / 20)
	}
}

// awaitEnd waits for the candidates. Work that was not told to stop keeps nobody from ending.
func (w *world) awaitEnd(candidates *sync.WaitGroup) {
	overdue := time.AfterFunc(4*w.plan.maxTTL()+w.plan.grace(), func() {
		w.judge.report("some work was not told to stop")
		close(w.overdue)
	})
	defer overdue.Stop()
	candidates.Wait()
}

// progressBound is the longest time that may pass without a holder when nothing is wrong any more: the longest
// TTL that anybody asked for; the time that those who crashed or stopped stay away, or those whose work takes longer, or
// those who wait before they try again; and a few operations, of which the first may have begun before.
func (w *world) progressBound() time.Duration {
	ttl := w.plan.maxTTL()
	if w.plan.electors == all(w.plan.candidates) {
		ttl = w.plan.ttl
	}
	return ttl + w.plan.ttl/2 + w.plan.grace()
}

func (w *world) newLink(c, n int) *link {
	l := &link{
		node:    w.nodes[n],
		latency: w.plan.latency,
		rng:     rand.New(rand.NewPCG(w.plan.seed, uint64(1000*c+n))),
		conns:   make(map[*conn]struct{}),
	}
	for _, f := range w.plan.faults {
		if f.kind != none && f.touches(c, n) {
			l.windows = append(l.windows, window{f.kind, w.begin.Add(f.from), w.begin.Add(f.to), f.dirs, f.delay})
		}
	}
	return l
}

func (f fault) touches(candidate, node int) bool {
	return f.candidates.has(candidate) && f.nodes.has(node)
}

// faulty reports whether the faulty time goes on: later nobody crashes.
func (w *world) faulty() bool { return time.Since(w.begin) < w.plan.length }

// calm reports whether nothing is wrong now, nor was for so long that nobody feels it any more.
func (w *world) calm() bool { return w.quietFor(w.plan.maxTTL() + w.plan.grace()) }

// quietFor reports whether nothing is wrong now, nor was within d.
func (w *world) quietFor(d time.Duration) bool {
	now := time.Since(w.begin)
	for _, f := range w.plan.faults {
		if now >= f.from && now <= f.to+f.delay+d {
			return false
		}
	}
	return true
}

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
	w.note("%s, nodes %v", f.what, f.nodes)
	if f.kind == refused {
		w.eachLink(f, (*link).breakAll)
	}
	switch f.act {
	case adminDelete:
		w.judge.deleted()
		w.eachNode(f, func(m *miniredis.Miniredis) { m.Del(keys.Lease) })
	case forget:
		w.eachNode(f, flushScripts)
	case restart:
		w.eachNode(f, flushScripts)
	}
	if f.to == f.from {
		return
	}
	time.Sleep(f.to - f.from)
	if f.act == restartEmpty {
		w.eachNode(f, func(m *miniredis.Miniredis) { m.FlushAll(); flushScripts(m) })
	}
	w.note("%s is over", f.what)
}

func (w *world) eachNode(f fault, do func(*miniredis.Miniredis)) {
	for n, m := range w.nodes {
		if f.nodes.has(n) {
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

// tokens returns whose lease each node has: "" for nobody's.
func (w *world) tokens() []string {
	tokens := make([]string, len(w.nodes))
	for i, n := range w.nodes {
		value, _ := n.Get(keys.Lease) // an error says that there is none
		tokens[i] = value[:min(len(value), tokenLength)]
	}
	return tokens
}

// tokenLength is the length of the part of a value that tells one acquisition from another.
const tokenLength = 40

// majority returns whose lease a majority of the nodes has, "" for nobody's.
func (w *world) majority() string {
	count := make(map[string]int)
	for _, token := range w.tokens() {
		if count[token]++; count[token] > len(w.nodes)/2 {
			return token
		}
	}
	return ""
}

// note adds a line to the timeline.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timeline = append(w.timeline, fmt.Sprintf("%12v  ", time.Since(w.begin).Round(time.Microsecond))+fmt.Sprintf(format, args...))
}

func (w *world) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.plan.String() + strings.Join(w.timeline, "\n")
}
