package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// nodeKinds make a node that reaches the server behind proxy. The clients repeat commands.
var nodeKinds = map[string]func(t *testing.T, s *redistest.Server, proxy string) redlock.Node{
	"client":    func(t *testing.T, _ *redistest.Server, proxy string) redlock.Node { return dial(t, proxy, retrying) },
	"universal": universal,
	"ring":      ring,
	"cluster":   func(t *testing.T, s *redistest.Server, proxy string) redlock.Node { return cluster(t, s, proxy) },
	"auto-pipelining": func(t *testing.T, _ *redistest.Server, proxy string) redlock.Node {
		return piped(t, dial(t, proxy, retrying).AutoPipeline)
	},
	"asynchronous auto-pipelining": func(t *testing.T, _ *redistest.Server, proxy string) redlock.Node {
		return piped(t, dial(t, proxy, retrying).AsyncAutoPipeline)
	},
	"auto-pipelining cluster": func(t *testing.T, s *redistest.Server, proxy string) redlock.Node {
		return piped(t, cluster(t, s, proxy).AutoPipeline)
	},
	"no more than a node": func(t *testing.T, _ *redistest.Server, proxy string) redlock.Node {
		return struct{ redlock.Node }{dial(t, proxy, retrying)}
	},
}

func retrying(o *redis.Options) { o.MaxRetries = 3 }

func universal(t *testing.T, _ *redistest.Server, proxy string) redlock.Node {
	c := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{proxy}, MaxRetries: 3})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func ring(t *testing.T, _ *redistest.Server, proxy string) redlock.Node {
	c := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"only": proxy}, MaxRetries: 3})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// cluster makes the server a cluster of one, reached through the proxy.
func cluster(t *testing.T, s *redistest.Server, proxy string) *redis.ClusterClient {
	c := redis.NewClusterClient(&redis.ClusterOptions{
		MaxRetries: 3,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: proxy}}}}, nil
		},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func piped(t *testing.T, make func() (*redis.AutoPipeliner, error)) redlock.Node {
	ap, err := make()
	must(t, err)
	t.Cleanup(func() { _ = ap.Close() })
	return ap
}

// startFor starts a server for a kind of node.
func startFor(t *testing.T, kind string) *redistest.Server {
	t.Helper()
	if !strings.Contains(kind, "cluster") {
		return redistest.Start(t)
	}
	s := redistest.Start(t, redistest.WithArgs("--cluster-enabled", "yes"))
	must(t, s.Client().Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err())
	eventually(t, 5*time.Second, "the cluster is up", func() bool {
		return strings.Contains(s.Client().ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	return s
}

func TestEveryKindOfNode(t *testing.T) {
	for kind, node := range nodeKinds {
		t.Run(kind, func(t *testing.T) {
			srv := startFor(t, kind)
			proxy := redistest.NewProxy(t, srv.Addr())
			m := manager(t, []redlock.Node{node(t, srv, proxy.Addr())}, redlock.Config{RetryDelay: 20 * time.Millisecond})
			t.Run("a lease lives", func(t *testing.T) { leaseLives(t, m) })
			t.Run("a lost reply is no contention", func(t *testing.T) { lostReplyIsNoContention(t, m, srv, proxy) })
		})
	}
}

func leaseLives(t *testing.T, m *redlock.Manager) {
	ctx := t.Context()
	key := "{" + redistest.Key(t) + "}"
	opts := []redlock.LockOption{redlock.WithFencingToken(key + "f"), redlock.WithMetadata("m"), redlock.WithAutoRenew(time.Second)}
	a, b := m.NewLock(key, opts...), m.NewLock(key, opts...)
	must(t, a.TryLock(ctx))
	wantIs(t, b.TryLock(ctx), redlock.ErrNotAcquired)
	if h, held, err := m.Holder(ctx, key); !held || err != nil || h.FencingToken != 1 || h.Metadata != "m" || h.TTL < 29*time.Second {
		t.Errorf("Holder says %+v, %v, %v", h, held, err)
	}
	if ttl, err := m.TTL(ctx, key); err != nil || ttl < 29*time.Second {
		t.Errorf("TTL says %v, %v", ttl, err)
	}
	must(t, a.Extend(ctx, time.Minute))
	got := wait(t, b)
	time.Sleep(50 * time.Millisecond)
	must(t, a.Unlock(ctx))
	arrival(t, got, time.Second)
	if b.FencingToken() != 2 {
		t.Errorf("token %d", b.FencingToken())
	}
	must(t, b.Unlock(ctx))
	if _, held, err := m.Holder(ctx, key); held || err != nil {
		t.Error("after the release it is held", err)
	}
}

func lostReplyIsNoContention(t *testing.T, m *redlock.Manager, srv *redistest.Server, proxy *redistest.Proxy) {
	for i, opts := range [][]redlock.LockOption{{}, {redlock.WithMetadata("m")}} {
		key := redistest.Key(t)
		l := m.NewLock(key, append(opts, redlock.WithAttempts(1))...)
		proxy.CutOnReply(key)
		err := l.TryLock(t.Context())
		if err != nil && (!errors.Is(err, redlock.ErrNotAcquired) || strings.Contains(err.Error(), "held by")) {
			t.Errorf("%d: error is %v", i, err)
		}
		if err == nil {
			must(t, l.Unlock(t.Context()))
		}
		eventually(t, 2*time.Second, "the key is gone", func() bool { return srv.Client().Exists(t.Context(), key).Val() == 0 })
	}
}

// The two keys of a fenced lease must be in one slot.
func TestKeysInTwoSlotsAreAnErrorAtOnce(t *testing.T) {
	srv := startFor(t, "cluster")
	m := manager(t, []redlock.Node{cluster(t, srv, srv.Addr())}, redlock.Config{})
	begin := time.Now()
	err := m.NewLock("{a}", redlock.WithFencingToken("{b}")).TryLock(t.Context())
	if err == nil || !strings.Contains(err.Error(), "CROSSSLOT") {
		t.Errorf("error is %v", err)
	}
	if d := time.Since(begin); d > 150*time.Millisecond {
		t.Errorf("it took %v to say so", d)
	}
}

func TestKeyOfAnotherTypeIsNamedAndLeftAlone(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		m := s.manager(t, redlock.Config{})
		for i, opts := range [][]redlock.LockOption{{}, {redlock.WithMetadata("m")}} {
			// Given lists at the lease's key,
			key := fmt.Sprint(redistest.Key(t), i)
			for _, srv := range s.servers {
				must(t, srv.Client().RPush(t.Context(), key, "x").Err())
			}
			l := m.NewLock(key, opts...)
			for name, acquire := range map[string]func(context.Context) error{"TryLock": l.TryLock, "Lock": l.Lock} {
				// when it is to be acquired,
				begin := time.Now()
				err := acquire(t.Context())
				// then the error says what is the matter, at once,
				wantIs(t, err, redlock.ErrNotAcquired)
				if !strings.Contains(err.Error(), "WRONGTYPE") || time.Since(begin) > 150*time.Millisecond {
					t.Errorf("%s: after %v, error %v", name, time.Since(begin), err)
				}
			}
			if _, _, err := m.Holder(t.Context(), key); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				t.Errorf("Holder says %v", err)
			}
			// and the lists are as they were.
			for _, srv := range s.servers {
				if n := srv.Client().LLen(t.Context(), key).Val(); n != 1 {
					t.Errorf("the list has %d elements", n)
				}
			}
		}
	})
}
