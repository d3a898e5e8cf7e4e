package election

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(addrVariable); addr != "" {
		candidateProcess(addr)
	}
	redis.SetLogger(silence{})
	goleak.VerifyTestMain(m)
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

const leaseKey = "{ns/name}:lease"

// history is what happened to the candidates of a test, in order.
type history struct {
	mu     sync.Mutex
	start  time.Time
	events []event
}

type event struct {
	at    time.Duration // since the start of the history
	who   string
	what  string // started, stopped, returned, new leader ...
	epoch uint64
}

func newHistory() *history { return &history{start: time.Now()} }

func (h *history) add(who, what string, epoch uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, event{time.Since(h.start), who, what, epoch})
}

// of returns the events of one kind and one candidate, "" being all.
func (h *history) of(who, what string) []event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.events), func(e event) bool {
		return who != "" && e.who != who || what != "" && e.what != what
	})
}

func (h *history) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := ""
	for _, e := range h.events {
		s += fmt.Sprintf("\n%12v  %-4s %s %d", e.at, e.who, e.what, e.epoch)
	}
	return s
}

// candidate is an Elector with a manager and a network of its own, as in a process of its own.
type candidate struct {
	*Elector
	name string
	link *bubble.Link
	m    *redlock.Manager
	stop context.CancelCauseFunc // ends Run's context
	done chan struct{}           // closed when Run has returned
	err  error                   // then: of Run
}

// newCandidate makes a candidate for ns/name with client-go's durations, which works until its context ends, and
// whose callbacks write into h. It is stopped when the test ends.
func newCandidate(t *testing.T, h *history, server *miniredis.Miniredis, name string, change ...func(*Config)) *candidate {
	t.Helper()
	c := &candidate{name: name, link: bubble.NewLink(server)}
	rdb := c.link.Client(t)
	m, err := redlock.NewSingle(rdb)
	if err != nil {
		t.Fatal(err)
	}
	c.m = m
	cfg := Config{
		Manager: m, Namespace: "ns", Name: "name", Identity: name, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { <-ctx.Done() },
			OnStoppedLeading: func() {},
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	work, stopped := cfg.Callbacks.OnStartedLeading, cfg.Callbacks.OnStoppedLeading
	cfg.Callbacks.OnStartedLeading = func(ctx context.Context) {
		epoch, _ := EpochFrom(ctx)
		h.add(name, "started", epoch)
		work(ctx)
		h.add(name, "returned", epoch)
	}
	cfg.Callbacks.OnStoppedLeading = func() {
		h.add(name, "stopped", 0)
		stopped()
	}
	if c.Elector, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.end()
		_ = m.Close()
	})
	return c
}

func (c *candidate) run() *candidate {
	ctx, cancel := context.WithCancelCause(context.Background())
	c.stop, c.done = cancel, make(chan struct{})
	go func() {
		defer close(c.done)
		c.err = c.Run(ctx)
	}()
	return c
}

// end stops the candidate and waits for its end.
func (c *candidate) end() {
	if c.done != nil {
		c.stop(nil)
		<-c.done
	}
}

// leaders returns who calls itself the leader.
func leaders(cs ...*candidate) (names []string) {
	for _, c := range cs {
		if c.IsLeader() {
			names = append(names, c.name)
		}
	}
	return names
}

func readRecord(t *testing.T, m *redlock.Manager) (Leader, bool) {
	t.Helper()
	h, held, err := m.Holder(t.Context(), leaseKey)
	if err != nil {
		t.Fatal(err)
	}
	if !held {
		return Leader{}, false
	}
	return leaderOf(h), true
}
