package resourcelock_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	redis.SetLogger(silence{})
	if addr := os.Getenv(addrVariable); addr != "" {
		leaderProcess(addr)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second // client-go adds up to 120% while it does not lead
)

// servers are the Redis of a bubble, one or three.
type servers []*miniredis.Miniredis

// newServers starts n servers in the bubble.
func newServers(t *testing.T, n int) servers {
	var s servers
	for range n {
		m, _ := bubble.Redis(t)
		s = append(s, m)
	}
	return s
}

// manager returns one with connections of its own.
func (s servers) manager(t *testing.T) *redlock.Manager {
	t.Helper()
	var nodes []redlock.Node
	for _, m := range s {
		c := redis.NewClient(bubble.Options(func(context.Context) (net.Conn, error) { return m.Dial() }))
		t.Cleanup(func() { _ = c.Close() })
		nodes = append(nodes, c)
	}
	return managerOf(t, nodes)
}

// network is that between one process and the servers.
type network []*bubble.Link

// remote returns a manager whose network can be disturbed.
func (s servers) remote(t *testing.T) (*redlock.Manager, network) {
	t.Helper()
	var nodes []redlock.Node
	var links network
	for _, m := range s {
		link := bubble.NewLink(m)
		nodes = append(nodes, link.Client(t))
		links = append(links, link)
	}
	return managerOf(t, nodes), links
}

func (n network) each(f func(*bubble.Link)) {
	for _, l := range n {
		f(l)
	}
}

func (n network) silence() { n.each((*bubble.Link).Silence) }
func (n network) mend()    { n.each((*bubble.Link).Mend) }

func managerOf(t *testing.T, nodes []redlock.Node) *redlock.Manager {
	t.Helper()
	m, err := redlock.New(nodes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func (s servers) deleteLease() {
	for _, m := range s {
		m.Del("{ns/name}:lease")
	}
}

func (s servers) hasLease() bool {
	for _, m := range s {
		if m.Exists("{ns/name}:lease") {
			return true
		}
	}
	return false
}

// candidate is an unmodified LeaderElector over our lock, and what its callbacks said.
type candidate struct {
	name    string
	lock    *resourcelock.Lock
	elector *leaderelection.LeaderElector
	done    chan struct{}
	stop    context.CancelFunc

	mu      sync.Mutex
	started []uint64 // epochs
	stopped int
	leaders []string
}

// options change how a candidate is made.
type option func(*resourcelock.Config, *leaderelection.LeaderElectionConfig)

func newCandidate(t *testing.T, m *redlock.Manager, name string, opts ...option) *candidate {
	t.Helper()
	c := &candidate{name: name, done: make(chan struct{})}
	cfg := resourcelock.Config{Manager: m, Namespace: "ns", Name: "name", Identity: name, QuorumFencing: true}
	lec := leaderelection.LeaderElectionConfig{
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true, Name: name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				c.mu.Lock()
				c.started = append(c.started, c.lock.Epoch())
				c.mu.Unlock()
			},
			OnStoppedLeading: func() { c.mu.Lock(); c.stopped++; c.mu.Unlock() },
			OnNewLeader:      func(id string) { c.mu.Lock(); c.leaders = append(c.leaders, id); c.mu.Unlock() },
		},
	}
	for _, o := range opts {
		o(&cfg, &lec)
	}
	var err error
	if c.lock, err = resourcelock.New(cfg); err != nil {
		t.Fatal(err)
	}
	if ops, ok := lec.Lock.(*opsLock); ok {
		ops.Interface = c.lock
	}
	if lec.Lock == nil {
		lec.Lock = c.lock
	}
	if c.elector, err = leaderelection.NewLeaderElector(lec); err != nil {
		t.Fatal(err)
	}
	return c
}

// run runs the elector once, until stop or loss.
func (c *candidate) run(t *testing.T) *candidate { return c.runIn(t, context.Background()) }

func (c *candidate) runIn(t *testing.T, ctx context.Context) *candidate {
	ctx, stop := context.WithCancel(ctx)
	c.stop = stop
	c.done = make(chan struct{})
	go func() {
		defer close(c.done)
		c.elector.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-c.done })
	return c
}

func (c *candidate) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *candidate) epochs() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]uint64(nil), c.started...)
}

func (c *candidate) stops() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

// theLeader returns the one candidate that holds the lease and knows it.
func theLeader(t *testing.T, cs ...*candidate) *candidate {
	t.Helper()
	var leader *candidate
	for _, c := range cs {
		if !c.elector.IsLeader() {
			continue
		}
		if leader != nil {
			t.Fatalf("%s and %s lead", leader.name, c.name)
		}
		leader = c
	}
	if leader == nil {
		t.Fatal("nobody leads")
	}
	return leader
}

func fast(cfg *resourcelock.Config, _ *leaderelection.LeaderElectionConfig) { cfg.FastHandover = true }

func equal(a, b []uint64) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// inBoth runs a test in a bubble over one Redis, and over three.
func inBoth(t *testing.T, f func(t *testing.T, s servers)) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, newServers(t, n)) })
		})
	}
}

func get(t *testing.T, l rl.Interface) *rl.LeaderElectionRecord {
	t.Helper()
	r, _, err := l.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}
