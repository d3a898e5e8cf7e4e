package redlock_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-logr/logr/funcr"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// wantFaults fails the test unless err is as many errors as there are wants, each with all words of its want.
func wantFaults(t *testing.T, err error, wants ...[]string) {
	t.Helper()
	var faults []error
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		faults = joined.Unwrap()
	} else if err != nil {
		t.Fatalf("error is %v, want faults that are joined", err)
	}
	if len(faults) != len(wants) {
		t.Fatalf("there are %d faults, want %d:\n%v", len(faults), len(wants), err)
	}
	for i, words := range wants {
		for _, w := range append(words, "redlock: node ") {
			if !strings.Contains(faults[i].Error(), w) {
				t.Errorf("fault %q does not say %q", faults[i], w)
			}
		}
	}
}

func connect(t *testing.T, servers ...*redistest.Server) []redlock.Node {
	t.Helper()
	var nodes []redlock.Node
	for _, s := range servers {
		nodes = append(nodes, dial(t, s.Addr()))
	}
	return nodes
}

func TestVerifyPersistence(t *testing.T) {
	everysec := redistest.WithArgs("--appendonly", "yes", "--appendfsync", "everysec")
	snapshots := redistest.WithArgs("--save", "3600 1")
	nothing := redistest.WithArgs()
	for _, c := range []struct {
		name            string
		how             redistest.Option
		single, redlock string // what is wrong
	}{
		{"always", redistest.WithAOF(), "", ""},
		{"every second", everysec, "", "appendfsync is everysec"},
		{"snapshots", snapshots, "", "appendonly is no"},
		{"nothing", nothing, "no persistence", "appendonly is no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for mode, want := range map[int]string{1: c.single, 3: c.redlock} {
				servers := redistest.StartN(t, mode, c.how)
				var faults [][]string
				for i := range servers {
					if want != "" {
						faults = append(faults, []string{fmt.Sprintf("node %d:", i), want, "set "})
					}
				}
				m := manager(t, connect(t, servers...), redlock.Config{})
				wantFaults(t, m.Verify(t.Context()), faults...)

				// The guard makes up for it, until there are counters.
				m = manager(t, connect(t, servers...), redlock.Config{RestartGuard: true})
				wantFaults(t, m.Verify(t.Context()))
				m.NewLock("k", redlock.WithMetadata("m"))
				wantFaults(t, m.Verify(t.Context()))
				m.NewLock("k", redlock.WithQuorumFencing("f"))
				wantFaults(t, m.Verify(t.Context()), faults...)
			}
		})
	}
}

func TestVerifyEviction(t *testing.T) {
	for _, c := range []struct {
		limit, policy string
		fault         bool
	}{
		{"0", "noeviction", false},
		{"0", "allkeys-lru", false},
		{"100mb", "noeviction", false},
		{"100mb", "allkeys-lru", true},
		{"100mb", "volatile-lru", true},
		{"100mb", "volatile-ttl", true},
	} {
		t.Run(c.policy+" "+c.limit, func(t *testing.T) {
			s := redistest.Start(t, redistest.WithAOF(), redistest.WithArgs("--maxmemory", c.limit, "--maxmemory-policy", c.policy))
			var want [][]string
			if c.fault {
				want = [][]string{{"node 0", c.policy, "104857600", "noeviction"}}
			}
			wantFaults(t, manager(t, connect(t, s), redlock.Config{}).Verify(t.Context()), want...)
		})
	}
}

func TestVerifyIndependence(t *testing.T) {
	servers := redistest.StartN(t, 3, redistest.WithAOF())
	a, b, c := servers[0], servers[1], servers[2]
	wantFaults(t, manager(t, connect(t, a, b, c), redlock.Config{}).Verify(t.Context()))
	wantFaults(t, manager(t, connect(t, a, b, a), redlock.Config{}).Verify(t.Context()),
		[]string{"node 2", "the same server as node 0"})
	wantFaults(t, manager(t, connect(t, a, a, a), redlock.Config{}).Verify(t.Context()),
		[]string{"node 1", "as node 0"}, []string{"node 2", "as node 0"}, []string{"node 2", "as node 1"})

	host, port, err := net.SplitHostPort(a.Addr())
	must(t, err)
	must(t, b.Client().ReplicaOf(t.Context(), host, port).Err())
	wantFaults(t, manager(t, connect(t, a, b, c), redlock.Config{}).Verify(t.Context()),
		[]string{"node 1", "replica of " + a.Addr(), "primary"})
	wantFaults(t, manager(t, connect(t, b), redlock.Config{}).Verify(t.Context()),
		[]string{"node 0", "replica"})
}

// newCluster returns primaries of one Redis Cluster that share the slots, with AOF but for the last.
func newCluster(t *testing.T, n int) []*redistest.Server {
	t.Helper()
	var servers []*redistest.Server
	for i := range n {
		persistence := redistest.WithAOF()
		if i == n-1 {
			persistence = redistest.WithArgs()
		}
		servers = append(servers, startClusterMember(t, persistence))
	}
	ctx := t.Context()
	for i, s := range servers {
		must(t, s.Client().ClusterAddSlotsRange(ctx, i*16384/n, (i+1)*16384/n-1).Err())
		must(t, s.Client().Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
	}
	for _, s := range servers[1:] {
		host, port, err := net.SplitHostPort(s.Addr())
		must(t, err)
		bus := s.Client().ConfigGet(ctx, "cluster-port").Val()["cluster-port"]
		must(t, servers[0].Client().Do(ctx, "CLUSTER", "MEET", host, port, bus).Err())
	}
	for _, s := range servers {
		eventually(t, 20*time.Second, "the cluster is whole", func() bool {
			return strings.Contains(s.Client().ClusterInfo(ctx).Val(), "cluster_state:ok")
		})
	}
	return servers
}

// startClusterMember gives the cluster's bus a free port: the usual one, 10000 above, may be none.
func startClusterMember(t *testing.T, opts ...redistest.Option) *redistest.Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	must(t, l.Close())
	return redistest.Start(t, append(opts, redistest.WithArgs("--cluster-enabled", "yes", "--cluster-port", port))...)
}

func TestVerifyCluster(t *testing.T) {
	members := newCluster(t, 3)
	alone := startClusterMember(t, redistest.WithAOF())
	other := redistest.Start(t, redistest.WithAOF())

	// Two clusters, and none at all, are independent.
	wantFaults(t, manager(t, connect(t, members[0], alone, other), redlock.Config{}).Verify(t.Context()))
	wantFaults(t, manager(t, connect(t, members[0], other, members[1]), redlock.Config{}).Verify(t.Context()),
		[]string{"node 2", "the same Redis Cluster as node 0", "independent"})

	// Of a cluster all primaries are asked.
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{members[0].Addr()}})
	t.Cleanup(func() { _ = cluster.Close() })
	m := manager(t, []redlock.Node{cluster}, redlock.Config{OperationTimeout: time.Second})
	wantFaults(t, m.Verify(t.Context()), []string{"node 0 (" + members[2].Addr() + ")", "no persistence"})
	nodes := append(connect(t, other, members[0]), cluster)
	wantFaults(t, manager(t, nodes, redlock.Config{OperationTimeout: time.Second, RestartGuard: true}).Verify(t.Context()),
		[]string{"node 2", "as node 1"})

	// The guard asks the one that has the key.
	guarded := manager(t, []redlock.Node{cluster}, redlock.Config{Expiry: time.Second, OperationTimeout: time.Second, RestartGuard: true, Attempts: 1})
	eventually(t, 5*time.Second, "a guarded lease is granted", func() bool {
		l := guarded.NewLock("k")
		return l.TryLock(t.Context()) == nil && l.Unlock(t.Context()) == nil
	})
}

func TestVerifyRing(t *testing.T) {
	good, bad := redistest.Start(t, redistest.WithAOF()), redistest.Start(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": good.Addr(), "b": bad.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	wantFaults(t, manager(t, []redlock.Node{ring}, redlock.Config{}).Verify(t.Context()),
		[]string{"node 0 (" + bad.Addr() + ")", "no persistence"})
}

func TestVerifyClocks(t *testing.T) {
	servers := redistest.StartN(t, 2, redistest.WithAOF())
	other := miniredis.RunT(t) // says little of itself, but its clock can be set
	m := manager(t, append(connect(t, servers...), dial(t, other.Addr())), redlock.Config{})
	for _, c := range []struct {
		ahead time.Duration
		want  []string
	}{
		{0, nil},
		{500 * time.Millisecond, nil},
		{-500 * time.Millisecond, nil},
		{2*time.Hour + 500*time.Millisecond, []string{"node 2", "2h0m0.", "ahead of that of node ", "NTP"}},
		{-3100 * time.Millisecond, []string{"node 2", "3.", "behind that of node ", "NTP"}},
	} {
		var want [][]string
		if c.want != nil {
			want = append(want, c.want)
		}
		other.SetTime(time.Now().Add(c.ahead))
		wantFaults(t, m.Verify(t.Context()), want...)
	}
}

func TestVerifyTellsWhoDoesNotAnswer(t *testing.T) {
	s := &site{servers: redistest.StartN(t, 3, redistest.WithAOF())}
	for _, srv := range s.servers {
		s.proxies = append(s.proxies, redistest.NewProxy(t, srv.Addr()))
	}
	const bound = 100 * time.Millisecond
	m := s.manager(t, redlock.Config{OperationTimeout: bound}, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	stubborn := s.manager(t, redlock.Config{OperationTimeout: bound}) // its clients wait for a second
	s.proxies[1].Hold(redistest.ToClient)
	begin := time.Now()
	err := m.Verify(t.Context())
	wantFaults(t, err, []string{"node 1", "INFO"})
	wantIs(t, err, context.DeadlineExceeded)
	wantFaults(t, stubborn.Verify(t.Context()), []string{"node 1", "did not answer within 500ms"})
	if d := time.Since(begin); d > 900*time.Millisecond {
		t.Errorf("that took %v", d)
	}

	// Verify ends with ctx, and with the manager.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	begin = time.Now()
	wantIs(t, stubborn.Verify(ctx), context.DeadlineExceeded)
	if d := time.Since(begin); d > 90*time.Millisecond {
		t.Errorf("ended %v after its start, ctx after 20ms", d)
	}
	s.proxies[1].Release(redistest.ToClient)
	must(t, m.Close())
	wantIs(t, m.Verify(t.Context()), redlock.ErrClosed)

	s.servers[2].Kill()
	wantFaults(t, stubborn.Verify(t.Context()), []string{"node 2"})
}

// What may not be asked is no fault, but told; what is in no error is the password.
func TestVerifyThatMayNotAsk(t *testing.T) {
	s := redistest.Start(t) // without persistence
	for user, rights := range map[string][]string{"nobody": {"+eval"}, "informed": {"+info"}} {
		must(t, s.Client().ACLSetUser(t.Context(), user, append([]string{"on", ">secret", "~*"}, rights...)...).Err())
	}
	as := func(user, password string) redlock.Node {
		c := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: user, Password: password})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for _, c := range []struct {
		name   string
		node   redlock.Node
		faults [][]string
		logs   []string
	}{
		{"no rights", as("nobody", "secret"), nil, []string{"info", "config", "time", "NOPERM"}},
		{"INFO only", as("informed", "secret"), nil, []string{"config", "time"}},
		{"plain node", struct{ redlock.Node }{dial(t, s.Addr())}, nil, []string{"no Process"}},
		{"wrong password", as("nobody", "public"), [][]string{{"node 0", "WRONGPASS"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var log strings.Builder
			cfg := redlock.Config{Logger: funcr.New(func(_, args string) {
				mu.Lock()
				defer mu.Unlock()
				log.WriteString(args + "\n")
			}, funcr.Options{Verbosity: 1})}
			err := manager(t, []redlock.Node{c.node}, cfg).Verify(t.Context())
			wantFaults(t, err, c.faults...)
			mu.Lock()
			defer mu.Unlock()
			for _, w := range append(c.logs, "") {
				if !strings.Contains(log.String(), w) {
					t.Errorf("the log does not say %q:\n%s", w, &log)
				}
			}
			for _, text := range []string{log.String(), fmt.Sprint(err)} {
				if strings.Contains(text, "secret") || strings.Contains(text, "public") {
					t.Errorf("the password is in %q", text)
				}
			}
		})
	}
}
