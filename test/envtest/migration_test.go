//go:build envtest

package envtest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ndyakov/go-redlock/resourcelock"
)

// A running controller moves from a Kubernetes Lease to Redis and back by rolling updates, while there is work to do and
// leaders crash: never two lead, and in the end each object has been reconciled.
func TestMigration(t *testing.T) {
	t.Parallel()
	inBoth(t, short, func(t *testing.T, w *world) {
		replicas := w.startN(3, byLease)
		w.log.leaderAfter(t, 0)
		stop := w.keepWorking()
		for _, next := range []lockKind{byBoth, byRedis, byBoth, byLease} {
			replicas = w.roll(replicas, next)
			w.awaitLeader(replicas)
			w.checkHolders(next, replicas)
			replicas = w.crashLeader(replicas, next)
			w.awaitLeader(replicas)
		}
		stop()
		w.checkAllReconciled()
	})
}

// A rolling update can be taken back half-way, with the leader of either kind.
func TestMigrationTakenBack(t *testing.T) {
	t.Parallel()
	inBoth(t, short, func(t *testing.T, w *world) {
		replicas := w.startN(3, byLease)
		w.log.leaderAfter(t, 0)
		stop := w.keepWorking()
		for _, step := range []struct{ from, to lockKind }{{byLease, byBoth}, {byBoth, byRedis}} {
			replicas = append(w.roll(replicas[:2], step.to), replicas[2]) // one is still the old one
			w.awaitLeader(replicas)
			replicas = w.crashLeader(replicas, step.to)
			w.awaitLeader(replicas)
			replicas = w.roll(replicas, step.from)
			w.awaitLeader(replicas)
			replicas = w.roll(replicas, step.to)
			w.awaitLeader(replicas)
		}
		stop()
		w.checkAllReconciled()
	})
}

// roll replaces one replica after the other, as a Deployment with maxSurge 1 and maxUnavailable 0 does: the new one
// runs before the old one is asked to end.
func (w *world) roll(old []*process, to lockKind) (replicas []*process) {
	w.t.Helper()
	for _, p := range old {
		replicas = append(replicas, w.start(to))
		time.Sleep(w.durations.Retry)
		p.terminate()
		if e := p.awaitExit(); e.Error != "" {
			w.t.Errorf("%s ended with %s", p.id, e.Error)
		}
	}
	return replicas
}

// crashLeader kills the leader, and has a new replica of kind by in its place.
func (w *world) crashLeader(replicas []*process, by lockKind) []*process {
	w.t.Helper()
	leader := w.awaitLeader(replicas)
	w.kill(leader)
	for i, p := range replicas {
		if p == leader {
			replicas[i] = w.start(by)
		}
	}
	return replicas
}

// awaitLeader waits until one of the replicas leads.
func (w *world) awaitLeader(replicas []*process) (leader *process) {
	w.t.Helper()
	eventually(w.t, "one of the replicas leads", func() bool {
		id := w.witness.Client().Get(context.Background(), witnessLeader).Val()
		for _, p := range replicas {
			if p.id == id {
				leader = p
			}
		}
		return leader != nil
	})
	return leader
}

// checkHolders checks where the lease of the leader stands.
func (w *world) checkHolders(by lockKind, replicas []*process) {
	w.t.Helper()
	inRedis, inLease := "", ""
	if h, held, err := w.leases.Holder(w.t.Context(), w.leaseKey()); err == nil && held {
		inRedis = h.Metadata
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: electionName}}
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
		w.t.Fatal(err)
	}
	if id := lease.Spec.HolderIdentity; id != nil {
		inLease = *id
	}
	switch {
	case by == byBoth && (inLease == "" || !strings.Contains(inRedis, inLease)):
		w.t.Errorf("while both are held Redis says %q, the Lease %q", inRedis, inLease)
	case by == byRedis && inRedis == "":
		w.t.Error("nobody holds the lease in Redis")
	case by == byLease && inLease == "":
		w.t.Error("nobody holds the Lease")
	}
}

// keepWorking makes one object after the other until stop is called.
func (w *world) keepWorking() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			w.objects++
			if err := w.api.Create(context.Background(), w.object(w.objects)); err != nil {
				w.t.Error(err)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

func (w *world) checkAllReconciled() {
	w.t.Helper()
	by := make(map[lockKind]int)
	for i := range w.objects {
		cm := w.object(i + 1)
		eventually(w.t, cm.Name+" is reconciled", func() bool {
			if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil {
				w.t.Fatal(err)
			}
			return cm.Data[signature] != ""
		})
		kind := cm.Data[signature]
		by[lockKind(kind[:strings.LastIndex(kind, " ")])]++
	}
	if len(by) != 3 {
		w.t.Errorf("the objects were reconciled by %v: not all kinds of leaders had work", by)
	}
	w.t.Logf("%d objects reconciled: %v", w.objects, by)
}

// Why the Lease must be the MultiLock's Primary: MultiLock reads its Secondary again just before it updates it, and so
// a Lease there is overwritten although somebody has renewed it since it was judged; as Primary it is protected by
// its resourceVersion.
func TestOnlyThePrimaryLeaseIsProtected(t *testing.T) {
	for _, leaseFirst := range []bool{true, false} {
		w := newWorld(t, 1, short)
		ctx := t.Context()
		record := func(id string) rl.LeaderElectionRecord {
			return rl.LeaderElectionRecord{HolderIdentity: id, LeaseDurationSeconds: 15, RenewTime: metav1.Now()}
		}
		old := w.leaseLock("old")
		if err := old.Create(ctx, record("old")); err != nil {
			t.Fatal(err)
		}

		inRedis, err := resourcelock.New(resourcelock.Config{
			Manager: w.leases, Namespace: w.namespace, Name: electionName, Identity: "young",
		})
		if err != nil {
			t.Fatal(err)
		}
		//lint:ignore SA1019 as in the guide
		both := &rl.MultiLock{Primary: w.leaseLock("young"), Secondary: inRedis}
		if !leaseFirst {
			both.Primary, both.Secondary = both.Secondary, both.Primary
		}
		_, _, _ = both.Get(ctx) // it looks,
		renewed := record("old")
		renewed.LeaderTransitions = 1
		if err := old.Update(ctx, renewed); err != nil { // the leader renews,
			t.Fatal(err)
		}
		err = both.Update(ctx, record("young")) // and it updates

		now, _, getErr := old.Get(ctx)
		if getErr != nil {
			t.Fatal(getErr)
		}
		switch {
		case leaseFirst && (!apierrors.IsConflict(err) || now.HolderIdentity != "old"):
			t.Errorf("with the Lease first: %v, and the Lease is %q's", err, now.HolderIdentity)
		case !leaseFirst && (err != nil || now.HolderIdentity != "young"):
			t.Errorf("with Redis first: %v, and the Lease is %q's: client-go has changed, see the guide", err, now.HolderIdentity)
		}
	}
}

func (w *world) leaseLock(id string) rl.Interface {
	w.t.Helper()
	l, err := rl.NewFromKubeconfig(rl.LeasesResourceLock, w.namespace, electionName,
		rl.ResourceLockConfig{Identity: id}, apiServer.Config, w.durations.Renew)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// The code of the guide is that of steps_test.go.
func TestGuideShowsWhatIsTested(t *testing.T) {
	guide, err := os.ReadFile("../../docs/migrate-from-lease.md")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := os.ReadFile("steps_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(steps), "compares.\n\n")
	for _, f := range strings.Split(code, "\n\n") {
		if !strings.Contains(string(guide), strings.TrimSpace(f)) {
			t.Errorf("the guide does not show\n%s", f)
		}
	}
}
