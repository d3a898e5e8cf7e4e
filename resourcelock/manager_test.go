package resourcelock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// realManager returns a lease manager over real servers.
func realManager(t *testing.T, addrs ...string) *redlock.Manager {
	t.Helper()
	var nodes []redlock.Node
	for _, a := range addrs {
		c := redis.NewClient(&redis.Options{Addr: a})
		t.Cleanup(func() { _ = c.Close() })
		nodes = append(nodes, c)
	}
	m, err := redlock.New(nodes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func newLock(t *testing.T, m *redlock.Manager, name, identity string) *resourcelock.Lock {
	t.Helper()
	l, err := resourcelock.New(resourcelock.Config{Manager: m, Namespace: "ns", Name: name, Identity: identity, FastHandover: true})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// work is a Runnable of the leader: it notes when it runs, and takes a moment to end.
type work struct {
	name string
	log  *diary
	lock *resourcelock.Lock
}

func (w *work) NeedLeaderElection() bool { return true }

func (w *work) Start(ctx context.Context) error {
	w.log.note("%s begins under epoch %d", w.name, w.lock.Epoch())
	<-ctx.Done()
	time.Sleep(50 * time.Millisecond) // it finishes what it was at
	w.log.note("%s ends", w.name)
	return nil
}

// diary is what happened, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

func (d *diary) await(t *testing.T, line string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !slices.Contains(d.read(), line); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q did not happen, but %q", line, d.read())
		}
	}
}

// newCtrlManager returns an unmodified controller-runtime manager with nowhere to find an API server.
func newCtrlManager(t *testing.T, lock *resourcelock.Lock, opts ...func(*ctrl.Options)) manager.Manager {
	t.Helper()
	o := ctrl.Options{
		Logger:                              logr.Discard(),
		LeaderElection:                      true,
		LeaderElectionReleaseOnCancel:       true,
		LeaderElectionResourceLockInterface: lock,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return meta.NewDefaultRESTMapper(nil), nil
		},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	}
	for _, f := range opts {
		f(&o)
	}
	m, err := ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// start starts m, and returns how to stop it and what Start returned.
func start(t *testing.T, m manager.Manager) (stop func(), result <-chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done <- m.Start(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return cancel, done
}

// Two managers without an API server: one leads its Runnables, the other waits, and begins only after the first has
// released, which is after its Runnables have ended.
func TestManagersWithoutAnAPIServer(t *testing.T) {
	for name, addrs := range map[string][]string{"single": {redistest.Single(t)}, "Redlock": redistest.Redlock(t)} {
		t.Run(name, func(t *testing.T) {
			lease := redistest.Key(t)
			d := new(diary)
			var stops []func()
			for _, id := range []string{"a", "b"} {
				lock := newLock(t, realManager(t, addrs...), lease, id)
				m := newCtrlManager(t, lock)
				for _, r := range []manager.Runnable{lock, &work{id, d, lock}} {
					if err := m.Add(r); err != nil {
						t.Fatal(err)
					}
				}
				stop, _ := start(t, m)
				stops = append(stops, stop)
				if id == "a" {
					d.await(t, fmt.Sprintf("a begins under epoch %d", epochOf(name, 1)))
				}
			}
			time.Sleep(100 * time.Millisecond)
			stops[0]()
			d.await(t, fmt.Sprintf("b begins under epoch %d", epochOf(name, 2)))
			want := []string{
				fmt.Sprintf("a begins under epoch %d", epochOf(name, 1)), "a ends",
				fmt.Sprintf("b begins under epoch %d", epochOf(name, 2)),
			}
			if got := d.read(); !slices.Equal(got, want) {
				t.Fatalf("happened %q, want %q", got, want)
			}
		})
	}
}

func epochOf(mode string, term int) int {
	if mode == "Redlock" {
		return 0
	}
	return term
}

// Probes are served by a manager that does not lead.
func TestFollowersServeProbes(t *testing.T) {
	lease, addr := redistest.Key(t), redistest.Single(t)
	leader := newLock(t, realManager(t, addr), lease, "leader")
	start(t, newCtrlManager(t, leader))
	for leader.Epoch() == 0 {
		time.Sleep(time.Millisecond)
	}
	probes := freeAddr(t)
	m := newCtrlManager(t, newLock(t, realManager(t, addr), lease, "follower"), func(o *ctrl.Options) {
		o.HealthProbeBindAddress = probes
	})
	if err := m.AddHealthzCheck("ping", healthz.Ping); err != nil {
		t.Fatal(err)
	}
	start(t, m)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		resp, err := http.Get("http://" + probes + "/healthz")
		if err == nil {
			resp.Body.Close()
			http.DefaultClient.CloseIdleConnections()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no probe is served: %v", err)
		}
	}
}

// The key is deleted under a leading manager that has the lock as a Runnable: Start returns an error within one
// RetryPeriod, and the next term has a higher epoch.
func TestDeletedKeyStopsTheManager(t *testing.T) {
	lease, addr := redistest.Key(t), redistest.Single(t)
	retry := 300 * time.Millisecond
	lock := newLock(t, realManager(t, addr), lease, "a")
	m := newCtrlManager(t, lock, func(o *ctrl.Options) { o.RetryPeriod = &retry })
	if err := m.Add(lock); err != nil {
		t.Fatal(err)
	}
	_, result := start(t, m)
	for lock.Epoch() == 0 {
		time.Sleep(time.Millisecond)
	}
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	if n := c.Del(t.Context(), "{ns/"+lease+"}:lease").Val(); n != 1 {
		t.Fatalf("deleted %d keys", n)
	}
	began := time.Now()
	err := <-result
	if !errors.Is(err, redlock.ErrLockLost) || !strings.Contains(err.Error(), lease) {
		t.Fatalf("Start returned %v", err)
	}
	if d := time.Since(began); d > retry+200*time.Millisecond {
		t.Fatalf("the manager stopped after %v, with a RetryPeriod of %v", d, retry)
	}
	next := newLock(t, realManager(t, addr), lease, "b")
	start(t, newCtrlManager(t, next))
	for deadline := time.Now().Add(5 * time.Second); next.Epoch() != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the next epoch is %d, want 2", next.Epoch())
		}
	}
}

// A follower that waits costs Redis next to nothing.
func TestAnIdleFollowerSendsAlmostNothing(t *testing.T) {
	s := redistest.Start(t)
	lock := newLock(t, realManager(t, s.Addr()), "idle", "leader")
	rec := recordOf(time.Hour)
	if err := lock.Create(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	follower := newLock(t, realManager(t, s.Addr()), "idle", "follower")
	if _, _, err := follower.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan struct{})
	go func() { defer close(waited); _, _, _ = follower.Get(ctx) }()
	for len(s.Client().PubSubChannels(t.Context(), "*").Val()) == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	before := calls(t, s)
	time.Sleep(3 * time.Second)
	if n := calls(t, s) - before - 1; n != 0 { // one is the INFO
		t.Errorf("%d commands in 3s of waiting, want none", n)
	}
	cancel()
	<-waited
}

// At the end of a TTL a follower asks for the new one with a single command: at most one in the 13s that are
// left of a TTL of 15s just before its renewal.
func TestALookAtTheEndOfATTLIsOneCommand(t *testing.T) {
	s := redistest.Start(t)
	m := realManager(t, s.Addr())
	lock := newLock(t, m, "idle", "leader")
	if err := lock.Create(t.Context(), recordOf(time.Second)); err != nil {
		t.Fatal(err)
	}
	follower := newLock(t, realManager(t, s.Addr()), "idle", "follower")
	if _, _, err := follower.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := make(chan struct{})
	go func() { defer close(waited); _, _, _ = follower.Get(ctx) }()
	for len(s.Client().PubSubChannels(t.Context(), "*").Val()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := lock.Update(t.Context(), recordOf(time.Hour)); err != nil {
		t.Fatal(err)
	}
	before := calls(t, s)
	time.Sleep(1500 * time.Millisecond) // past the TTL that the follower knew
	if n := calls(t, s) - before - 1; n != 1 {
		t.Errorf("%d commands at the end of a TTL, want one", n)
	}
	cancel()
	<-waited
}
