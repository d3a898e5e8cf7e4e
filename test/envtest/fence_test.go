//go:build envtest

package envtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ndyakov/go-redlock/examples/controller/fenced"
)

const (
	deployDir    = "../../examples/controller/deploy/"
	managedLabel = "redlock.example/managed"
)

// installFence has the API server refuse stale epochs, from when this returns.
func installFence(t *testing.T, api client.Client, namespace string) {
	t.Helper()
	for _, obj := range decodeFile(t, deployDir+"base/fence.yaml") {
		if err := api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the policy is in force", func() bool {
		err := api.Create(t.Context(), fencedObject(namespace, "probe", "no epoch"), client.DryRunAll)
		return apierrors.IsForbidden(err)
	})
}

func fencedObject(namespace, name, epoch string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{managedLabel: "true"}}}
	setEpoch(cm, epoch)
	return cm
}

func setEpoch(cm *corev1.ConfigMap, epoch string) {
	cm.Annotations = nil
	if epoch != "" {
		cm.Annotations = map[string]string{fenced.EpochAnnotation: epoch}
	}
}

// writes are the ways to have an object bear another epoch, or none.
var writes = map[string]func(context.Context, client.Client, *corev1.ConfigMap, string) error{
	"update": func(ctx context.Context, api client.Client, cm *corev1.ConfigMap, epoch string) error {
		setEpoch(cm, epoch)
		return api.Update(ctx, cm)
	},
	"patch": func(ctx context.Context, api client.Client, cm *corev1.ConfigMap, epoch string) error {
		value := fmt.Sprintf("%q", epoch)
		if epoch == "" {
			value = "null"
		}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, fenced.EpochAnnotation, value)
		return api.Patch(ctx, cm, client.RawPatch(types.MergePatchType, []byte(patch)))
	},
	"apply": func(ctx context.Context, api client.Client, cm *corev1.ConfigMap, epoch string) error {
		c := corev1apply.ConfigMap(cm.Name, cm.Namespace).WithLabels(cm.Labels)
		if epoch != "" {
			c.WithAnnotations(map[string]string{fenced.EpochAnnotation: epoch})
		}
		return api.Apply(ctx, c, client.FieldOwner("test"), client.ForceOwnership)
	},
}

const (
	maxInt64  = "9223372036854775807"
	maxUint64 = "18446744073709551615"
)

func TestFenceComparesEpochs(t *testing.T) {
	t.Parallel()
	api, namespace := newNamespace(t)
	installFence(t, api, namespace)
	for i, c := range []struct {
		stored, written string
		refused         string // part of the error, "" for none
	}{
		{"", "", ""},
		{"", "1", ""},
		{"1", "2", ""},
		{"2", "2", ""},
		{"9", "10", ""},
		{maxInt64, "9223372036854775808", ""},
		{maxInt64, maxUint64, ""},
		{maxUint64, maxUint64, ""},
		{"2", "1", "epoch 1 is stale: epoch 2 has written"},
		{"10", "9", "epoch 9 is stale: epoch 10 has written"},
		{maxUint64, "18446744073709551614", "is stale"},
		{"9223372036854775808", maxInt64, "is stale"},
		{"2", "", "must not be removed"},
		{"2", "0", "not an epoch"},
		{"2", "x", "not an epoch"},
		{"2", "-3", "not an epoch"},
		{"2", "+3", "not an epoch"},
		{"2", "3.0", "not an epoch"},
		{"2", "03", "not an epoch"},
		{"2", "3 ", "not an epoch"},
		{"2", "3\n", "not an epoch"},
		{"2", "18446744073709551616", "not an epoch"},
		{"2", "99999999999999999999", "not an epoch"},
		{"2", "100000000000000000000", "not an epoch"},
		{"", "x", "not an epoch"},
	} {
		for name, write := range writes {
			t.Run(fmt.Sprintf("%s %q to %q", name, c.stored, c.written), func(t *testing.T) {
				cm := fencedObject(namespace, fmt.Sprintf("%s-%d", name, i), c.stored)
				create := func() error { return api.Create(t.Context(), cm) }
				if name == "apply" { // removes what it has applied itself
					create = func() error { return write(t.Context(), api, cm, c.stored) }
				}
				if err := create(); err != nil {
					t.Fatal(err)
				}
				checkRefused(t, write(t.Context(), api, cm, c.written), c.refused)
				want := c.written
				if c.refused != "" {
					want = c.stored
				}
				checkEpoch(t, api, cm, want)
			})
		}
	}
}

// checkRefused checks that err is the policy's, for the reason given, or nil where none is.
func checkRefused(t *testing.T, err error, reason string) {
	t.Helper()
	if reason == "" && err != nil || reason != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), reason)) {
		t.Errorf("the error is %v, want one that is Forbidden for %q", err, reason)
	}
}

func checkEpoch(t *testing.T, api client.Client, cm *corev1.ConfigMap, want string) {
	t.Helper()
	var stored corev1.ConfigMap
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(cm), &stored); err != nil {
		t.Fatal(err)
	}
	if got := stored.Annotations[fenced.EpochAnnotation]; got != want {
		t.Errorf("the object bears epoch %q, want %q", got, want)
	}
}

func TestFenceRefusesACreationWithoutANumber(t *testing.T) {
	t.Parallel()
	api, namespace := newNamespace(t)
	installFence(t, api, namespace)
	checkRefused(t, api.Create(t.Context(), fencedObject(namespace, "a", "x")), "not an epoch")
	checkRefused(t, api.Create(t.Context(), fencedObject(namespace, "b", "")), "")
	checkRefused(t, api.Create(t.Context(), fencedObject(namespace, "c", "3")), "")
}

// Objects without the label are not the fence's; but taking it off is no way past it.
func TestFenceFollowsTheLabel(t *testing.T) {
	t.Parallel()
	api, namespace := newNamespace(t)
	installFence(t, api, namespace)
	cm := fencedObject(namespace, "cm", "x")
	cm.Labels = nil
	checkRefused(t, api.Create(t.Context(), cm), "")
	for _, epoch := range []string{"5", "4", "", "y"} {
		checkRefused(t, writes["update"](t.Context(), api, cm, epoch), "")
	}

	cm.Labels = map[string]string{managedLabel: "true"}
	checkRefused(t, api.Update(t.Context(), cm), "not an epoch") // it still bears y
	checkRefused(t, writes["update"](t.Context(), api, cm, "5"), "")

	cm.Labels = nil
	checkRefused(t, writes["update"](t.Context(), api, cm, "4"), "is stale")
	checkRefused(t, writes["update"](t.Context(), api, cm, "5"), "")
	checkRefused(t, writes["update"](t.Context(), api, cm, "4"), "") // the administrator's way
	cm.Labels = map[string]string{managedLabel: "true"}
	checkRefused(t, api.Update(t.Context(), cm), "")
}

// What people do with kubectl carries the annotation along.
func TestFenceLetsOtherFieldsBeWritten(t *testing.T) {
	t.Parallel()
	api, namespace := newNamespace(t)
	installFence(t, api, namespace)
	cm := fencedObject(namespace, "cm", "5")
	checkRefused(t, api.Create(t.Context(), cm), "")
	for _, patch := range []string{`{"data":{"a":"b"}}`, `{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"finalizers":["example.com/a"]}}`,
		`{"metadata":{"annotations":{"a":"b"}}}`, `{"metadata":{"finalizers":null}}`} {
		checkRefused(t, api.Patch(t.Context(), cm, client.RawPatch(types.MergePatchType, []byte(patch))), "")
	}
	c := corev1apply.ConfigMap(cm.Name, cm.Namespace).WithData(map[string]string{"c": "d"})
	checkRefused(t, api.Apply(t.Context(), c, client.FieldOwner("kubectl")), "")
	checkEpoch(t, api, cm, "5")
	checkRefused(t, api.Delete(t.Context(), cm), "") // not fenced
}
