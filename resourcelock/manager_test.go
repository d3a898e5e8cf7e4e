package resourcelock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

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
	return newLockOf(t, resourcelock.Config{Manager: m, Namespace: "ns", Name: name, Identity: identity, FastHandover: true, QuorumFencing: true})
}

func newLockOf(t *testing.T, cfg resourcelock.Config) *resourcelock.Lock {
	t.Helper()
	l, err := resourcelock.New(cfg)
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
	three := redistest.Redlock(t)
	for name, v := range map[string]struct {
		addrs  []string
		epochs bool
	}{
		"single":                 {addrs: []string{redistest.Single(t)}, epochs: true},
		"Redlock":                {addrs: three, epochs: true},
		"Redlock without epochs": {addrs: three},
	} {
		t.Run(name, func(t *testing.T) {
			lease := redistest.Key(t)
			begins := func(id string, term int) string {
				if !v.epochs {
					term = 0
				}
				return fmt.Sprintf("%s begins under epoch %d", id, term)
			}
			d := new(diary)
			var stops []func()
			for _, id := range []string{"a", "b"} {
				lock := newLockOf(t, resourcelock.Config{
					Manager: realManager(t, v.addrs...), Namespace: "ns", Name: lease, Identity: id, FastHandover: true, QuorumFencing: name == "Redlock",
				})
				m := newCtrlManager(t, lock)
				for _, r := range []manager.Runnable{lock, &work{id, d, lock}} {
					if err := m.Add(r); err != nil {
						t.Fatal(err)
					}
				}
				stop, _ := start(t, m)
				stops = append(stops, stop)
				if id == "a" {
					d.await(t, begins("a", 1))
				}
			}
			time.Sleep(100 * time.Millisecond)
			stops[0]()
			d.await(t, begins("b", 2))
			want := []string{begins("a", 1), "a ends", begins("b", 2)}
			if got := d.read(); !slices.Equal(got, want) {
				t.Fatalf("happened %q, want %q", got, want)
			}
		})
	}
}

// Probes and webhooks are served by a manager that does not lead as well.
func TestProbesAndWebhooksServeOnBoth(t *testing.T) {
	lease, addr := redistest.Key(t), redistest.Single(t)
	dir := t.TempDir()
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"tls.crt": certPEM, "tls.key": keyPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var locks []*resourcelock.Lock
	for _, id := range []string{"a", "b"} {
		probes, hooks := freeAddr(t), freeAddr(t)
		_, port, _ := net.SplitHostPort(hooks)
		n, _ := strconv.Atoi(port)
		hookServer := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: n, CertDir: dir})
		hookServer.Register("/hook", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
		lock := newLock(t, realManager(t, addr), lease, id)
		m := newCtrlManager(t, lock, func(o *ctrl.Options) {
			o.HealthProbeBindAddress, o.WebhookServer = probes, hookServer
		})
		if err := m.AddHealthzCheck("ping", healthz.Ping); err != nil {
			t.Fatal(err)
		}
		if err := m.Add(hookServer); err != nil {
			t.Fatal(err)
		}
		start(t, m)
		awaitOK(t, "http://"+probes+"/healthz")
		awaitOK(t, "https://"+hooks+"/hook")
		if id == "a" {
			awaitEpoch(t, lock, 1)
		}
		locks = append(locks, lock)
	}
	if a, b := locks[0].Epoch(), locks[1].Epoch(); a != 1 || b != 0 {
		t.Errorf("epochs %d and %d: want one leader", a, b)
	}
}

func awaitOK(t *testing.T, url string) {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the test's own certificate
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		resp, err := client.Get(url)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not serve: %v", url, err)
		}
	}
}

func awaitEpoch(t *testing.T, l *resourcelock.Lock, epoch uint64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); l.Epoch() != epoch; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the epoch is %d, want %d", l.Epoch(), epoch)
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
	awaitEpoch(t, lock, 1)
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
	awaitEpoch(t, next, 2)
}

// The same without the lock as a Runnable: the manager stops when client-go gives up, within its RenewDeadline, and its
// work has never gone on under another epoch.
func TestDeletedKeyStopsAManagerWithoutTheRunnable(t *testing.T) {
	lease, addr := redistest.Key(t), redistest.Single(t)
	ttl, deadline, retry := 3*time.Second, 2*time.Second, 200*time.Millisecond
	d := new(diary)
	lock := newLock(t, realManager(t, addr), lease, "a")
	m := newCtrlManager(t, lock, func(o *ctrl.Options) {
		o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = &ttl, &deadline, &retry
	})
	if err := m.Add(&work{"a", d, lock}); err != nil {
		t.Fatal(err)
	}
	_, result := start(t, m)
	d.await(t, "a begins under epoch 1")
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	if n := c.Del(t.Context(), "{ns/"+lease+"}:lease").Val(); n != 1 {
		t.Fatalf("deleted %d keys", n)
	}
	began := time.Now()
	if err := <-result; err == nil || !strings.Contains(err.Error(), "leader election lost") {
		t.Fatalf("Start returned %v", err)
	}
	if d := time.Since(began); d > deadline+retry+200*time.Millisecond {
		t.Errorf("the manager stopped after %v, with a RenewDeadline of %v", d, deadline)
	}
	next := newLock(t, realManager(t, addr), lease, "b")
	start(t, newCtrlManager(t, next))
	awaitEpoch(t, next, 2)
	if slices.ContainsFunc(d.read(), func(s string) bool { return strings.HasPrefix(s, "a begins under epoch 2") }) {
		t.Errorf("happened %q", d.read())
	}
}

// Handovers between unmodified managers with client-go's own durations.
func TestHandoverBetweenManagersTakesMilliseconds(t *testing.T) {
	for name, addrs := range map[string][]string{"single": {redistest.Single(t)}, "Redlock": redistest.Redlock(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lease, d := redistest.Key(t), new(diary)
			run := func(id string) (stop func(), result <-chan error) {
				lock := newLock(t, realManager(t, addrs...), lease, id)
				m := newCtrlManager(t, lock)
				for _, r := range []manager.Runnable{lock, &work{id, d, lock}} {
					if err := m.Add(r); err != nil {
						t.Fatal(err)
					}
				}
				return start(t, m)
			}
			const handovers = 3
			var took []time.Duration
			stop, result := run("0")
			for i := range handovers {
				d.await(t, fmt.Sprintf("%d begins under epoch %d", i, i+1))
				nextStop, nextResult := run(fmt.Sprint(i + 1))
				time.Sleep(5 * time.Second) // it has looked once, and waits
				stop()
				if err := <-result; err != nil {
					t.Fatal(err)
				}
				ended := time.Now()
				d.await(t, fmt.Sprintf("%d begins under epoch %d", i+1, i+2))
				took = append(took, time.Since(ended))
				stop, result = nextStop, nextResult
			}
			slices.Sort(took)
			t.Logf("handovers took %v after the old manager had stopped", took)
			if median := took[len(took)/2]; median > 50*time.Millisecond {
				t.Errorf("the median is %v", median)
			}
		})
	}
}
