package redlock_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// guardUnit is what servers may be mistaken by in their uptime.
const guardUnit = time.Second

// awaitUptime waits until all servers have been up for long enough for a guarded lease of ttl.
func (s *site) awaitUptime(t testing.TB, ttl time.Duration) {
	t.Helper()
	for _, srv := range s.servers {
		eventually(t, ttl+10*time.Second, "the server has been up for long enough", func() bool {
			info := srv.Client().InfoMap(t.Context(), "server").Item("Server", "uptime_in_seconds")
			up, err := time.ParseDuration(info + "s")
			return err == nil && up >= ttl+guardUnit
		})
	}
}

func TestRestartGuard(t *testing.T) {
	for name, opts := range map[string][]redlock.LockOption{
		"plain":          nil,
		"quorum fencing": {redlock.WithQuorumFencing("fence")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testRestartGuard(t, opts)
		})
	}
}

func testRestartGuard(t *testing.T, opts []redlock.LockOption) {
	const ttl = 3 * time.Second
	cfg := redlock.Config{Expiry: ttl, OperationTimeout: 300 * time.Millisecond}
	s := newSite(t, 3)
	careless := s.manager(t, cfg).NewLock("k", opts...)
	cfg.RestartGuard = true
	careful := s.manager(t, cfg).NewLock("k", opts...)
	s.awaitUptime(t, ttl)

	// Given a lease on the servers 0 and 1,
	must(t, careful.TryLock(t.Context()))
	must(t, careful.Unlock(t.Context()))
	unreachable := redistest.NewProxy(t, s.servers[2].Addr())
	nodes := append(s.clients(t)[:2], dial(t, unreachable.Addr()))
	unreachable.Refuse()
	holder := manager(t, nodes, cfg).NewLock("k", opts...)
	must(t, holder.TryLock(t.Context()))
	acquired := time.Now()
	if s.at(t, 2, "k") != "" {
		t.Fatal("the lease is on server 2 as well")
	}

	// when server 1 forgets it,
	s.servers[1].RestartEmpty()

	// then without the guard there are two holders,
	must(t, careless.TryLock(t.Context()))
	if !holder.Held() || !careless.Held() {
		t.Fatalf("held by the first: %v, by the second: %v; the test was too slow (%v) or shows nothing", holder.Held(), careless.Held(), time.Since(acquired))
	}
	must(t, careless.Unlock(t.Context()))

	// with it one, although server 1 has granted,
	err := careful.TryLock(t.Context())
	wantIs(t, err, redlock.ErrNotAcquired)
	q := quorumError(t, err)
	if why := q.NodeErrors[1]; q.Contended() || len(q.NodeErrors) != 1 || why == nil ||
		!strings.Contains(why.Error(), "up for") || !strings.Contains(why.Error(), "RestartGuard") {
		t.Errorf("contended: %v, error: %v", q.Contended(), err)
	}
	if !holder.Held() {
		t.Fatalf("after %v the first is not held any more: the test was too slow", time.Since(acquired))
	}
	eventually(t, time.Second, "what was granted is undone", func() bool { return s.at(t, 1, "k") == "" && s.at(t, 2, "k") == "" })

	// and the server counts again once what it has forgotten is over.
	s.proxies[0].Refuse()
	eventually(t, ttl+5*time.Second, "the server counts again", func() bool { return careful.TryLock(t.Context()) == nil })
	if up := time.Since(acquired); up < ttl || holder.Held() {
		t.Errorf("after %v a lease of %v was granted anew; held by the first: %v", up, ttl, holder.Held())
	}
}

// A node that is too young may still have the lease, and the fencing token, of a majority that is not.
func TestYoungNodeTakesPartInALease(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	s := newSite(t, 3)
	m := s.manager(t, redlock.Config{Expiry: ttl, RestartGuard: true})
	s.awaitUptime(t, ttl)
	s.servers[1].RestartEmpty()
	l := m.NewLock("k", redlock.WithQuorumFencing("fence"), redlock.WithFenceFloor(func(context.Context) (uint64, error) { return 7, nil }))
	must(t, l.TryLock(t.Context()))
	eventually(t, time.Second, "the lease and its token are there", func() bool {
		return s.at(t, 1, "fence") == "8" && s.at(t, 1, "k") == s.at(t, 0, "k")
	})
	must(t, l.Extend(t.Context(), ttl)) // no question is asked any more
	must(t, l.Unlock(t.Context()))
	s.wantFree(t, "k", time.Second)
}

// With one Redis the guard has a lease wait for what a restart may have forgotten. Nobody is woken by an attempt that
// came to nothing because of it: those who wait would wake each other without end.
func TestGuardedLockWaitsForAYoungServer(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		t.Parallel()
		const ttl = time.Second
		// Late in a second of the clock: servers count those that begin, so they soon think to have been up for one.
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1750 * time.Millisecond)))
		started := time.Now()
		for _, srv := range s.servers {
			srv.RestartEmpty()
		}
		released := s.servers[0].Client().Subscribe(t.Context(), "k:released")
		defer released.Close()
		_, err := released.Receive(t.Context())
		must(t, err)
		messages := released.Channel()

		l := s.manager(t, redlock.Config{Expiry: ttl, RestartGuard: true}).NewLock("k")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		must(t, l.Lock(ctx))
		if d := time.Since(started); d < ttl {
			t.Errorf("granted after %v", d)
		}
		select {
		case msg := <-messages:
			t.Errorf("a release was told: %v", msg)
		case <-time.After(50 * time.Millisecond):
		}
		if n := calls(t, s.servers[0], "set"); n > 60 {
			t.Errorf("there were %d attempts", n)
		}
		must(t, l.Unlock(t.Context()))
	})
}

// calls returns how often a server has executed a command.
func calls(t testing.TB, s *redistest.Server, command string) int {
	t.Helper()
	stat := s.Client().InfoMap(t.Context(), "commandstats").Item("Commandstats", "cmdstat_"+command)
	n, _, _ := strings.Cut(strings.TrimPrefix(stat, "calls="), ",")
	count, err := strconv.Atoi(n)
	if err != nil {
		t.Fatalf("%s was executed %q times: %v", command, n, err)
	}
	return count
}

// The question goes where the lease is, whatever the client is, and a node that may not answer it does not count.
func TestGuardAsksEveryKindOfNode(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	s := newSite(t, 1)
	srv := s.servers[0]
	s.awaitUptime(t, ttl)
	must(t, srv.Client().ACLSetUser(t.Context(), "elector", "on", ">secret", "~*", "&*", "+@all", "-info").Err())
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": srv.Addr()}})
	defer ring.Close()
	client := dial(t, srv.Addr())
	for name, node := range map[string]redlock.Node{
		"plain node": struct{ redlock.Node }{client},
		"client":     client,
		"ring":       ring,
	} {
		l := manager(t, []redlock.Node{node}, redlock.Config{Expiry: ttl, RestartGuard: true}).NewLock("k")
		if err := l.TryLock(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		must(t, l.Unlock(t.Context()))
	}

	refused := dial(t, srv.Addr(), func(o *redis.Options) { o.Username, o.Password = "elector", "secret" })
	err := manager(t, []redlock.Node{refused}, redlock.Config{Expiry: ttl, RestartGuard: true, Attempts: 1}).NewLock("k").TryLock(t.Context())
	why := quorumError(t, err).NodeErrors[0]
	if why == nil || !strings.Contains(why.Error(), "uptime") || !strings.Contains(why.Error(), "RestartGuard") {
		t.Errorf("a node that may not be asked: %v", err)
	}
	if v := s.at(t, 0, "k"); v != "" { // it had granted, and TryLock has waited for that to be undone
		t.Errorf("there is left %q", v)
	}
}
