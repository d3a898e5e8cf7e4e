//go:build envtest

package envtest

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// short has faults told from delays in seconds; full is what controller-runtime has when nothing is said.
var (
	short = durations{Lease: 4 * time.Second, Renew: 2 * time.Second, Retry: 500 * time.Millisecond}
	full  = durations{Lease: 15 * time.Second, Renew: 10 * time.Second, Retry: 2 * time.Second}
)

const (
	electionName = "controller"
	patience     = 60 * time.Second // for what must happen, on a busy machine
)

// world is one election: its namespace, its servers, its witness, its candidates.
type world struct {
	t         *testing.T
	namespace string
	api       client.Client
	redis     []*redistest.Server
	witness   *redistest.Server
	durations durations
	log       *logbook
	leases    *redlock.Manager // by which the test itself looks
	made      int              // candidates so far
	objects   int              // ConfigMaps so far
}

// newWorld makes one with a single Redis, a Redlock of three, or, for zero, none.
func newWorld(t *testing.T, servers int, d durations) *world {
	t.Helper()
	api, namespace := newNamespace(t)
	w := &world{
		t:         t,
		namespace: namespace,
		api:       api,
		witness:   redistest.Start(t),
		durations: d,
		log:       newLogbook(),
	}
	if servers > 0 {
		w.redis = redistest.StartN(t, servers)
	}
	if servers > 0 {
		w.leases = w.manager()
	}
	t.Cleanup(w.check)
	return w
}

// newNamespace makes a namespace, and a client that may do everything and reads from the API server itself.
func newNamespace(t *testing.T) (api client.Client, namespace string) {
	t.Helper()
	api, err := client.New(apiServer.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := api.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return api, ns.Name
}

// inBoth runs test with a single Redis and with a Redlock of three.
func inBoth(t *testing.T, d durations, test func(*testing.T, *world)) {
	for name, n := range map[string]int{"single": 1, "Redlock": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, n, d))
		})
	}
}

// check is what holds of every election.
func (w *world) check() {
	faults, err := w.witness.Client().LRange(context.Background(), witnessFaults, 0, -1).Result()
	if err != nil || len(faults) > 0 {
		w.t.Errorf("the witness has seen %q (%v)", faults, err)
	}
	if w.t.Failed() {
		w.t.Logf("what happened:\n%s", w.log)
	}
}

// quorum are the fewest servers without which nobody can be elected.
func (w *world) quorum() []*redistest.Server { return w.redis[:len(w.redis)/2+1] }

func (w *world) start(by lockKind, opts ...func(*plan)) *process {
	w.t.Helper()
	w.made++
	p := plan{
		ID:         fmt.Sprintf("%s %d", by, w.made),
		Kubeconfig: apiServer.Path,
		Namespace:  w.namespace,
		Name:       electionName,
		Lock:       by,
		Witness:    w.witness.Addr(),
		Durations:  w.durations,
	}
	for _, s := range w.redis {
		p.Redis = append(p.Redis, s.Addr())
	}
	for _, o := range opts {
		o(&p)
	}
	return spawn(w.t, p, w.log)
}

func (w *world) startN(n int, by lockKind) []*process {
	w.t.Helper()
	var ps []*process
	for range n {
		ps = append(ps, w.start(by))
	}
	return ps
}

// kill ends a candidate with SIGKILL. What the dead cannot tell the witness is told for it.
func (w *world) kill(p *process) {
	w.t.Helper()
	p.kill()
	err := leaveScript.Run(w.t.Context(), w.witness.Client(), []string{witnessLeader, witnessFaults}, p.id).Err()
	if err != nil {
		w.t.Fatal(err)
	}
}

// work has n objects made, and checks that leader, and nobody else, reconciles them.
func (w *world) work(n int, leader *process) {
	w.t.Helper()
	for range n {
		w.objects++
		cm := w.object(w.objects)
		if err := w.api.Create(w.t.Context(), cm); err != nil {
			w.t.Fatal(err)
		}
		eventually(w.t, cm.Name+" is reconciled", func() bool {
			if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil {
				w.t.Fatal(err)
			}
			return cm.Data[signature] != ""
		})
		if got := cm.Data[signature]; got != leader.id {
			w.t.Fatalf("%s was reconciled by %q, while %q leads", cm.Name, got, leader.id)
		}
		if strings.HasPrefix(leader.id, string(byRedis)) && cm.Data[epochKey] != fmt.Sprint(leader.epoch()) {
			w.t.Fatalf("%s was reconciled under epoch %s, while that of %q is %d", cm.Name, cm.Data[epochKey], leader.id, leader.epoch())
		}
	}
}

func (w *world) object(i int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("object-%d", i)}}
}

// keys of the election in Redis.
func (w *world) leaseKey() string { return "{" + w.namespace + "/" + electionName + "}:lease" }
func (w *world) channel() string  { return "{" + w.namespace + "/" + electionName + "}:released" }

func (w *world) manager() *redlock.Manager {
	w.t.Helper()
	var addrs []string
	for _, s := range w.redis {
		addrs = append(addrs, s.Addr())
	}
	return w.managerOf(addrs)
}

// managerBehindProxies returns one that cutOff separates from all servers.
func (w *world) managerBehindProxies() (m *redlock.Manager, cutOff func()) {
	w.t.Helper()
	var addrs []string
	var proxies []*redistest.Proxy
	for _, s := range w.redis {
		p := redistest.NewProxy(w.t, s.Addr())
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	return w.managerOf(addrs), func() {
		for _, p := range proxies {
			p.Refuse()
		}
	}
}

func (w *world) managerOf(addrs []string) *redlock.Manager {
	w.t.Helper()
	var nodes []redlock.Node
	for _, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr})
		w.t.Cleanup(func() { _ = c.Close() })
		nodes = append(nodes, c)
	}
	m, err := redlock.New(nodes...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = m.Close() })
	return m
}

// awaitListeners waits until n followers listen for a release at each of the servers, and not just still: one that has seen
// the lease change hands listens again only after client-go's next RetryPeriod.
func (w *world) awaitListeners(n int64) {
	w.t.Helper()
	for _, s := range w.redis {
		seen := 0
		eventually(w.t, fmt.Sprintf("%d followers listen", n), func() bool {
			got, err := s.Client().PubSubNumSub(w.t.Context(), w.channel()).Result()
			if seen++; err != nil || got[w.channel()] < n {
				seen = 0
			}
			return seen > 10 // a tenth of a second
		})
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen within %v that %s", patience, what)
		}
	}
}

// holder returns who holds the lease in Redis.
func (w *world) holder() redlock.Holder {
	w.t.Helper()
	h, held, err := w.leases.Holder(w.t.Context(), w.leaseKey())
	if err != nil || !held {
		w.t.Fatalf("who holds the lease in Redis: held %v, %v", held, err)
	}
	return h
}

// proxied returns a proxy to the API server, and a kubeconfig that leads through it.
func proxied(t *testing.T) (proxy *redistest.Proxy, path string) {
	t.Helper()
	server, err := url.Parse(apiServer.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	addr := server.Host
	proxy = redistest.NewProxy(t, addr)
	given, err := os.ReadFile(apiServer.Path)
	if err != nil || !bytes.Contains(given, []byte(addr)) {
		t.Fatalf("the kubeconfig does not name %s: %v", addr, err)
	}
	path = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, bytes.ReplaceAll(given, []byte(addr), []byte(proxy.Addr())), 0o600); err != nil {
		t.Fatal(err)
	}
	return proxy, path
}
