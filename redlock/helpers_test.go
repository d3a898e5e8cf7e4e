package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// world is a set of independent servers in virtual time.
type world []*miniredis.Miniredis

// virtually runs f in a bubble, with one server and with three.
func virtually(t *testing.T, f func(t *testing.T, w world)) {
	t.Helper()
	for _, n := range []int{1, 3} {
		t.Run(modeOf(n), func(t *testing.T) { virtual(t, n, f) })
	}
}

func modeOf(nodes int) string {
	if nodes == 1 {
		return "single"
	}
	return fmt.Sprintf("%d nodes", nodes)
}

func virtual(t *testing.T, nodes int, f func(t *testing.T, w world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := make(world, nodes)
		for i := range w {
			w[i], _ = bubble.Redis(t)
		}
		f(t, w)
	})
}

// party is a manager with a network of its own, as in a process of its own.
type party struct {
	*redlock.Manager
	links []*bubble.Link
}

func (w world) party(t *testing.T, cfg redlock.Config, wrap ...func(*redis.Client) redlock.Node) *party {
	t.Helper()
	p := new(party)
	var nodes []redlock.Node
	for _, s := range w {
		link := bubble.NewLink(s)
		p.links = append(p.links, link)
		c := link.Client(t)
		var n redlock.Node = c
		for _, f := range wrap {
			n = f(c)
		}
		nodes = append(nodes, n)
	}
	p.Manager = manager(t, nodes, cfg)
	return p
}

// each applies f to all links of the party.
func (p *party) each(f func(*bubble.Link)) {
	for _, l := range p.links {
		f(l)
	}
}

// holding returns on how many servers there is something at key.
func (w world) holding(key string) (n int) {
	for _, s := range w {
		if s.Exists(key) {
			n++
		}
	}
	return n
}

// wantFree fails the test if there is something at key on any server.
func (w world) wantFree(t *testing.T, key string) {
	t.Helper()
	for i, s := range w {
		if v, err := s.Get(key); err == nil {
			t.Errorf("%q is left on server %d for %v: %q", key, i, s.TTL(key), v)
		}
	}
}

func manager(t testing.TB, nodes []redlock.Node, cfg redlock.Config) *redlock.Manager {
	t.Helper()
	m, err := redlock.NewWithConfig(cfg, nodes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// site is a set of real servers, each behind a proxy.
type site struct {
	servers []*redistest.Server
	proxies []*redistest.Proxy
}

func newSite(t testing.TB, nodes int) *site {
	t.Helper()
	s := &site{servers: redistest.StartN(t, nodes)}
	for _, srv := range s.servers {
		s.proxies = append(s.proxies, redistest.NewProxy(t, srv.Addr()))
	}
	return s
}

// really runs f against one real server, and against three.
func really(t *testing.T, f func(t *testing.T, s *site)) {
	t.Helper()
	for _, n := range []int{1, 3} {
		t.Run(modeOf(n), func(t *testing.T) { f(t, newSite(t, n)) })
	}
}

// clients returns clients that reach the servers through the proxies, and have a connection each.
func (s *site) clients(t testing.TB, change ...func(*redis.Options)) []redlock.Node {
	t.Helper()
	var nodes []redlock.Node
	for _, p := range s.proxies {
		nodes = append(nodes, dial(t, p.Addr(), change...))
	}
	return nodes
}

func dial(t testing.TB, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: addr, ReadTimeout: time.Second}
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	eventually(t, 5*time.Second, "the server answers", func() bool { return c.Ping(context.Background()).Err() == nil })
	return c
}

// manager returns a manager over the proxies.
func (s *site) manager(t testing.TB, cfg redlock.Config, change ...func(*redis.Options)) *redlock.Manager {
	t.Helper()
	return manager(t, s.clients(t, change...), cfg)
}

// at returns what stands at key on server i, "" for nothing.
func (s *site) at(t testing.TB, i int, key string) string {
	t.Helper()
	v, err := s.servers[i].Client().Get(context.Background(), key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return v
}

// everywhere waits until what a majority has granted stands on every server, and returns it.
func (s *site) everywhere(t testing.TB, key string) string {
	t.Helper()
	for i := range s.servers {
		eventually(t, 2*time.Second, "the lease is on every server", func() bool { return s.at(t, i, key) != "" })
	}
	return s.at(t, 0, key)
}

// wantFree fails the test if key is not gone on every server, for a while, by the time within is over.
func (s *site) wantFree(t testing.TB, key string, within time.Duration) {
	t.Helper()
	const awhile = 50 * time.Millisecond
	seen := time.Now() // the last time that there was something
	for begin := seen; time.Since(seen) < awhile; time.Sleep(2 * time.Millisecond) {
		for i := range s.servers {
			if v := s.at(t, i, key); v != "" {
				seen = time.Now()
				if seen.Sub(begin) > within {
					t.Fatalf("after %v there is something at %q on server %d: %q", within, key, i, v)
				}
			}
		}
	}
}

func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v it is not so that %s", within, what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantIs fails the test unless err is want.
func wantIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
}

// quorumError returns err as a QuorumError.
func quorumError(t testing.TB, err error) *redlock.QuorumError {
	t.Helper()
	var q *redlock.QuorumError
	if !errors.As(err, &q) {
		t.Fatalf("error is %v, want a QuorumError", err)
	}
	return q
}

// isLost reports whether the lease of l has been told lost.
func isLost(l *redlock.Lock) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

// async runs f in a goroutine that the test waits for.
func async(t testing.TB, f func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	t.Cleanup(wg.Wait)
}
