package fenced

import (
	"errors"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What needs an API server is tested in test/envtest.

func configMap(epoch string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cm"}}
	if epoch != "" {
		cm.Annotations = map[string]string{EpochAnnotation: epoch}
	}
	return cm
}

func TestEpochOf(t *testing.T) {
	for annotation, want := range map[string]uint64{"": 0, "7": 7, "18446744073709551615": math.MaxUint64} {
		if got, err := EpochOf(configMap(annotation)); got != want || err != nil {
			t.Errorf("%q: %d (%v), want %d", annotation, got, err, want)
		}
	}
	for _, annotation := range []string{"x", "-1", "1.5", " 1", "18446744073709551616"} {
		if _, err := EpochOf(configMap(annotation)); err == nil {
			t.Errorf("%q passes for an epoch", annotation)
		}
	}
}

func TestMayWrite(t *testing.T) {
	for annotation, want := range map[string]error{"": nil, "4": nil, "5": nil, "6": ErrStale, "18446744073709551615": ErrStale} {
		if err := mayWrite(configMap(annotation), 5); !errors.Is(err, want) {
			t.Errorf("epoch 5 over %q: %v, want %v", annotation, err, want)
		}
	}
	if err := mayWrite(configMap("x"), 5); err == nil {
		t.Error("what bears no epoch in its annotation may be written")
	}
}

func TestStampedPatch(t *testing.T) {
	before := configMap("5")
	after := before.DeepCopy()
	after.Data = map[string]string{"a": "b"}
	patch, err := stampedPatch(after, client.MergeFrom(before), 5)
	if err != nil {
		t.Fatal(err)
	}
	got, err := patch.Data(after)
	if want := `{"data":{"a":"b"},"metadata":{"annotations":{"redlock.example/epoch":"5"}}}`; string(got) != want || err != nil {
		t.Errorf("the patch is %s (%v), want %s", got, err, want)
	}
	large := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"n":9007199254740993}}`))
	if patch, err = stampedPatch(after, large, 5); err != nil {
		t.Fatal(err)
	}
	got, _ = patch.Data(after)
	if want := `{"metadata":{"annotations":{"redlock.example/epoch":"5"}},"spec":{"n":9007199254740993}}`; string(got) != want {
		t.Errorf("the patch is %s, want %s", got, want)
	}
	for _, p := range []client.Patch{
		client.RawPatch(types.JSONPatchType, []byte(`[]`)),
		client.RawPatch(types.MergePatchType, []byte(`[]`)),
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`)),
	} {
		if _, err := stampedPatch(after, p, 5); err == nil {
			data, _ := p.Data(after)
			t.Errorf("%s %s was stamped", p.Type(), data)
		}
	}
}
