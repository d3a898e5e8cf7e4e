package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

// process is one life of a candidate: clients and a manager of its own.
type process struct {
	w         *world
	name      string // candidate.life
	candidate int
	clients   []*redis.Client
	manager   *redlock.Manager
	dead      atomic.Bool

	mu      sync.Mutex
	rng     *rand.Rand
	elector *election.Elector
}

func (w *world) start(candidate, life int) *process {
	p := &process{
		w:         w,
		name:      fmt.Sprintf("%d.%d", candidate, life),
		candidate: candidate,
		rng:       rand.New(rand.NewPCG(w.plan.seed, uint64(1000*candidate+life))),
	}
	var nodes []redlock.Node
	for _, l := range w.links[candidate] {
		o := bubble.Options(func(ctx context.Context) (net.Conn, error) {
			if p.dead.Load() {
				return nil, errRefused
			}
			return l.dial(ctx)
		})
		o.MaxRetries = w.plan.retries
		o.ReadBufferSize, o.WriteBufferSize = 1<<10, 1<<10
		client := redis.NewClient(o)
		p.clients = append(p.clients, client)
		nodes = append(nodes, client)
	}
	m, err := redlock.NewWithConfig(redlock.Config{
		Expiry:           w.plan.ttl,
		OperationTimeout: w.plan.timeout,
		RetryDelay:       w.plan.ttl / 10,
		Logger:           p.logger(),
	}, nodes...)
	if err != nil {
		panic(err) // the plan asks for what cannot be
	}
	p.manager = m
	return p
}

// end is an end in good order: what is still to be undone gets the time for it, which may not be enough where something
// is wrong.
func (p *process) end() {
	time.Sleep(p.w.plan.grace())
	if !p.w.quietFor(p.w.plan.grace()) {
		p.w.judge.gone(p)
	}
	p.close()
}

// crash cuts the process off from everybody. Its goroutines still have to be ended.
func (p *process) crash() {
	p.w.note("%s crashes", p.name)
	p.w.judge.gone(p)
	p.dead.Store(true)
	for _, l := range p.w.links[p.candidate] {
		l.breakAll()
	}
}

func (p *process) close() {
	_ = p.manager.Close()
	for _, c := range p.clients {
		_ = c.Close()
	}
}

// draw returns a random number from 0 to n-1.
func (p *process) draw(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.IntN(n)
}

// upTo returns a random duration below d.
func (p *process) upTo(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.rng.Int64N(int64(d)))
}

// logger has what the library says in the timeline of a plan that is looked at.
func (p *process) logger() logr.Logger {
	if !p.w.verbose {
		return logr.Discard()
	}
	return funcr.New(func(_, line string) { p.note("  %s", line) }, funcr.Options{Verbosity: 1})
}

func (p *process) note(format string, args ...any) {
	p.w.note("%s "+format, append([]any{p.name}, args...)...)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
