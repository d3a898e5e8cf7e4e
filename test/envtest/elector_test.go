//go:build envtest

package envtest

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/leaderelection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/examples/controller/fenced"
	"github.com/ndyakov/go-redlock/redlock"
)

// ledManager is a manager without leader election of its own, with an Elector as a Runnable. Its leader writes an object through
// a fenced client, once at the beginning of each term.
type ledManager struct {
	elector *election.Elector
	api     *fenced.Client
	began   chan context.Context // of the terms, when their first write is done
	stop    context.CancelFunc
	result  chan error // of Start
}

func startLed(w *world, id string, leases *redlock.Manager, cm *corev1.ConfigMap) *ledManager {
	w.t.Helper()
	mgr, err := ctrl.NewManager(apiServer.Config, ctrl.Options{
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}}},
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	m := &ledManager{
		api:    fenced.New(mgr.GetClient(), election.EpochFrom),
		began:  make(chan context.Context, 10),
		result: make(chan error, 1),
	}
	m.elector, err = election.New(election.Config{
		Manager: leases, Namespace: w.namespace, Name: electionName, Identity: id,
		LeaseDuration: w.durations.Lease, RenewDeadline: w.durations.Renew, RetryPeriod: w.durations.Retry,
		ReleaseOnCancel: true,
		QuorumFencing:   true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				if err := m.write(ctx, cm, id); err != nil {
					w.t.Errorf("%s: the first write of a term: %v", id, err)
				}
				m.began <- ctx
				<-ctx.Done()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := mgr.Add(m.elector); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	go func() {
		m.result <- mgr.Start(ctx)
		close(m.result)
	}()
	w.t.Cleanup(func() { m.stop(); <-m.result })
	return m
}

// write updates the object in the term of ctx, after a fresh read.
func (m *ledManager) write(ctx context.Context, cm *corev1.ConfigMap, value string) error {
	cm = cm.DeepCopy()
	patch := client.MergeFrom(cm.DeepCopy())
	cm.Data = map[string]string{"by": value}
	return m.api.Patch(ctx, cm, patch)
}

// term awaits the manager's next term, and returns its context and epoch.
func (m *ledManager) term(t *testing.T) (context.Context, uint64) {
	t.Helper()
	select {
	case ctx := <-m.began:
		epoch, ok := election.EpochFrom(ctx)
		if !ok {
			t.Fatal("the term has no epoch")
		}
		return ctx, epoch
	case err := <-m.result:
		t.Fatalf("the manager ended: %v", err)
	case <-time.After(patience):
		t.Fatalf("it does not lead within %v", patience)
	}
	return nil, 0
}

// An Elector in a manager: it leads, hands over when asked to and when the manager stops, and releases the lease at the end.
func TestElectorInAManager(t *testing.T) {
	t.Parallel()
	inBoth(t, short, func(t *testing.T, w *world) {
		installFence(t, w.api, w.namespace)
		cm := fencedObject(w.namespace, "cm", "")
		if err := w.api.Create(t.Context(), cm); err != nil {
			t.Fatal(err)
		}
		a := startLed(w, "a", w.manager(), cm)
		_, first := a.term(t)
		b := startLed(w, "b", w.manager(), cm)
		w.awaitListeners(1)
		if !a.elector.IsLeader() || b.elector.IsLeader() {
			t.Error("not just the first one leads")
		}

		if err := a.elector.StepDown(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, second := b.term(t)
		w.awaitListeners(1)
		stopped := time.Now()
		b.stop()
		_, third := a.term(t)
		if took := time.Since(stopped); took > w.durations.Lease/2 {
			t.Errorf("the handover of a manager that stops took %v", took)
		}
		if err := <-b.result; err != nil {
			t.Errorf("the manager that was stopped: %v", err)
		}
		if !(first < second && second < third) {
			t.Errorf("the epochs were %d, %d and %d", first, second, third)
		}
		checkEpoch(t, w.api, cm, strconv.FormatUint(third, 10))

		a.stop()
		if err := <-a.result; err != nil {
			t.Errorf("the manager that was stopped: %v", err)
		}
		if _, held, err := w.leases.Holder(t.Context(), w.leaseKey()); held || err != nil {
			t.Errorf("after the last manager the lease is held: %v (%v)", held, err)
		}
	})
}

// The case that optimistic concurrency cannot catch. A leader is cut off from Redis, another leads; the first, which has
// still a write to send, has read the object afresh.
func TestFenceRefusesAStaleLeaderWithAFreshRead(t *testing.T) {
	t.Parallel()
	inBoth(t, short, func(t *testing.T, w *world) {
		installFence(t, w.api, w.namespace)
		cm := fencedObject(w.namespace, "cm", "")
		if err := w.api.Create(t.Context(), cm); err != nil {
			t.Fatal(err)
		}
		leases, cutOff := w.managerBehindProxies()
		a := startLed(w, "a", leases, cm)
		old, oldEpoch := a.term(t)
		b := startLed(w, "b", w.manager(), cm)
		cutOff()
		current, epoch := b.term(t)
		if epoch <= oldEpoch {
			t.Fatalf("epoch %d came after %d", epoch, oldEpoch)
		}
		if a.elector.IsLeader() || !errors.Is(context.Cause(old), election.ErrLost) {
			t.Errorf("the first one leads: %v, and the cause of the end of its term is %v", a.elector.IsLeader(), context.Cause(old))
		}
		if err := a.write(old, cm, "the old one"); !errors.Is(err, context.Canceled) {
			t.Errorf("a write in a term that is over: %v", err)
		}

		// It was paused after all its own checks, and its write is on the wire only now.
		late := &corev1.ConfigMap{}
		if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(cm), late); err != nil {
			t.Fatal(err)
		}
		late.Data = map[string]string{"by": "the old one"}
		stale := late.DeepCopy()
		checkRefused(t, writes["update"](t.Context(), w.api, stale, strconv.FormatUint(oldEpoch, 10)), "is stale")
		checkRefused(t, a.write(context.WithoutCancel(old), cm, "the old one"), "is stale")

		// The same read is good enough for the current leader.
		checkRefused(t, writes["update"](t.Context(), w.api, late, strconv.FormatUint(epoch, 10)), "")
		if err := b.write(current, cm, "b"); err != nil {
			t.Errorf("the current leader's next write: %v", err)
		}
	})
}
