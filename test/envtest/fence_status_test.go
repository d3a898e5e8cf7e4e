//go:build envtest

package envtest

import (
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ndyakov/go-redlock/examples/controller/fenced"
)

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.redlock.example
spec:
  group: redlock.example
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            status:
              type: object
              properties:
                phase: {type: string}
                epoch: {type: string}
`

// What fence.yaml says of the status of custom resources: an annotation does not fence it, and a field of it does,
// by the same expressions.
func TestFenceOfAStatus(t *testing.T) {
	t.Parallel()
	api, namespace := newNamespace(t)
	installFence(t, api, namespace)
	apply := func(all manifests) {
		for _, obj := range all {
			if err := api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply(decode(t, []byte(widgets)))
	w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "redlock.example/v1", "kind": "Widget"}}
	w.SetNamespace(namespace)
	w.SetName("w")
	w.SetLabels(map[string]string{managedLabel: "true"})
	w.SetAnnotations(map[string]string{fenced.EpochAnnotation: "2"})
	eventually(t, "a Widget is made", func() bool { return api.Create(t.Context(), w.DeepCopy()) == nil })

	write := func(annotation, epoch string, opts ...client.SubResourceUpdateOption) error {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(w), w); err != nil {
			t.Fatal(err)
		}
		w.SetAnnotations(map[string]string{fenced.EpochAnnotation: annotation})
		w.Object["status"] = map[string]any{"phase": "Ready", "epoch": epoch}
		return api.Status().Update(t.Context(), w, opts...)
	}
	apply(fenceOf(t, annotated))
	bad := w.DeepCopy()
	bad.SetName("bad")
	bad.SetAnnotations(map[string]string{fenced.EpochAnnotation: "no epoch"})
	eventually(t, "annotations of widgets are looked at", func() bool {
		return apierrors.IsForbidden(api.Create(t.Context(), bad.DeepCopy(), client.DryRunAll))
	})
	if err := write("1", "2"); err != nil || w.GetAnnotations()[fenced.EpochAnnotation] != "2" {
		t.Errorf("annotation %q of a status write was stored (%v): fence.yaml should not say that it is ignored", w.GetAnnotations(), err)
	}

	apply(fenceOf(t, "bject.?status.?epoch"))
	eventually(t, "epochs in the status are", func() bool {
		return apierrors.IsForbidden(write("2", "no epoch", client.DryRunAll))
	})
	checkRefused(t, write("2", "2"), "")
	checkRefused(t, write("2", "1"), "epoch 1 is stale: epoch 2 has written")
	checkRefused(t, write("2", ""), "must not be removed")
	checkRefused(t, write("2", "10"), "")
}

// annotated is where fence.yaml has the epoch of an object. In it oldObject is matched as well.
const annotated = "bject.metadata.?annotations[?'redlock.example/epoch']"

// fenceOf returns the policy of fence.yaml for widgets, under another name, with the epoch in that place.
func fenceOf(t *testing.T, place string) manifests {
	t.Helper()
	data, err := os.ReadFile(deployDir + "base/fence.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, change := range [][2]string{
		{`"configmaps"`, `"widgets", "widgets/status"`},
		{`apiGroups: [""]`, `apiGroups: ["redlock.example"]`},
		{"epochs.redlock.example", "epochs-of-widgets.redlock.example"},
		{annotated, place},
	} {
		if !strings.Contains(text, change[0]) {
			t.Fatalf("fence.yaml has no %s", change[0])
		}
		text = strings.ReplaceAll(text, change[0], change[1])
	}
	return decode(t, []byte(text))
}
