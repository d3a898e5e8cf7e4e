//go:build envtest

package envtest

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ndyakov/go-redlock/examples/controller/fenced"
)

// during returns a client for the term with that epoch, 0 for none.
func during(api client.Client, epoch uint64) *fenced.Client {
	return fenced.New(api, func(context.Context) (uint64, bool) { return epoch, epoch != 0 })
}

// Every way to write stamps; without a term none sends anything.
func TestFencedClient(t *testing.T) {
	t.Parallel()
	api, namespace := newNamespace(t)
	installFence(t, api, namespace)
	ctx := t.Context()
	cm := fencedObject(namespace, "cm", "")
	applied := func() *corev1apply.ConfigMapApplyConfiguration {
		return corev1apply.ConfigMap(cm.Name, cm.Namespace).WithData(map[string]string{"applied": "yes"})
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(during(api, 1).Create(ctx, cm))
	checkEpoch(t, api, cm, "1")
	must(during(api, 2).Update(ctx, cm))
	checkEpoch(t, api, cm, "2")
	before := cm.DeepCopy()
	cm.Data = map[string]string{"patched": "yes"}
	must(during(api, 3).Patch(ctx, cm, client.MergeFrom(before)))
	checkEpoch(t, api, cm, "3")
	before = cm.DeepCopy()
	cm.Data["patched"] = "again"
	must(during(api, 4).Patch(ctx, cm, client.StrategicMergeFrom(before)))
	checkEpoch(t, api, cm, "4")
	a := applied()
	must(during(api, 5).Apply(ctx, a, client.FieldOwner("test"), client.ForceOwnership))
	checkEpoch(t, api, cm, "5")
	if a.ResourceVersion == nil || a.Data["patched"] != "again" || a.Data["applied"] != "yes" {
		t.Errorf("Apply left no answer of the server's in what was applied: %v", a)
	}

	idle := during(api, 0)
	empty := client.RawPatch(types.MergePatchType, []byte(`{}`))
	for name, err := range map[string]error{
		"Create":        idle.Create(ctx, fencedObject(namespace, "another", "")),
		"Update":        idle.Update(ctx, cm),
		"Patch":         idle.Patch(ctx, cm, empty),
		"Apply":         idle.Apply(ctx, applied(), client.FieldOwner("test")),
		"Delete":        idle.Delete(ctx, cm),
		"DeleteAllOf":   idle.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(namespace)),
		"status Create": idle.SubResource("status").Create(ctx, cm, cm),
		"status Update": idle.Status().Update(ctx, cm),
		"status Patch":  idle.Status().Patch(ctx, cm, empty),
		"status Apply":  idle.Status().Apply(ctx, applied()),
	} {
		if !errors.Is(err, fenced.ErrNotLeading) {
			t.Errorf("%s without a term: %v", name, err)
		}
	}
	checkEpoch(t, api, cm, "5")
	must(during(api, 6).Delete(ctx, cm))
}

// A leader of old that knows nothing of the new one: whatever it has read, and by whatever way it writes.
func TestFencedClientOfAStaleLeader(t *testing.T) {
	t.Parallel()
	api, namespace := newNamespace(t)
	installFence(t, api, namespace)
	ctx := t.Context()
	old, current := during(api, 1), during(api, 2)
	cm := fencedObject(namespace, "cm", "")
	if err := old.Create(ctx, cm); err != nil {
		t.Fatal(err)
	}
	read := cm.DeepCopy() // by the old one, in its own term
	if err := current.Update(ctx, cm); err != nil {
		t.Fatal(err)
	}
	const stale = "epoch 1 is stale: epoch 2 has written"

	// A merge patch has no resourceVersion, and would not have had the epoch: the object at hand bears it already.
	patched := read.DeepCopy()
	patched.Data = map[string]string{"by": "the old one"}
	checkRefused(t, old.Patch(ctx, patched, client.MergeFrom(read)), stale)
	checkRefused(t, old.Apply(ctx, corev1apply.ConfigMap(cm.Name, namespace), client.FieldOwner("old"), client.ForceOwnership), stale)

	// An update without a resourceVersion is one of whatever is there.
	blind := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cm.Name, Labels: cm.Labels}}
	checkRefused(t, old.Update(ctx, blind), stale)

	// With a fresh read nothing needs to be sent.
	fresh := cm.DeepCopy()
	if err := old.Get(ctx, client.ObjectKeyFromObject(cm), fresh); err != nil {
		t.Fatal(err)
	}
	if err := old.Update(ctx, fresh); !errors.Is(err, fenced.ErrStale) {
		t.Errorf("an update of what bears a higher epoch: %v", err)
	}
	checkEpoch(t, api, cm, "2")
	if err := current.Update(ctx, cm); err != nil {
		t.Errorf("the current leader's next write: %v", err)
	}
}
