package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

type epoch uint64

func (e epoch) Epoch() uint64 { return uint64(e) }

func configMap(name, stamp string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, Labels: map[string]string{managedLabel: "true"}, ResourceVersion: "1",
	}}
	if stamp != "" {
		cm.Annotations = map[string]string{epochAnnotation: stamp}
	}
	return cm
}

func TestConfigMapsAreStamped(t *testing.T) {
	for name, c := range map[string]struct {
		stamp string
		epoch epoch
		want  string
		error string // part of it, "" for none
	}{
		"first":         {"", 2, "2", ""},
		"raised":        {"1", 2, "2", ""},
		"kept":          {"2", 2, "2", ""},
		"never lowered": {"3", 2, "3", "bears epoch 3"},
		"lease lost":    {"1", 0, "1", "lost"},
		"not an epoch":  {"x", 2, "x", "not an epoch"},
	} {
		t.Run(name, func(t *testing.T) {
			cm := configMap("cm", c.stamp)
			api := fake.NewClientBuilder().WithObjects(cm).Build()
			r := &reconciler{api, c.epoch}
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cm)})
			if c.error == "" && err != nil || c.error != "" && (err == nil || !strings.Contains(err.Error(), c.error)) {
				t.Errorf("error %v, want one with %q", err, c.error)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil {
				t.Fatal(err)
			}
			if got := cm.Annotations[epochAnnotation]; got != c.want {
				t.Errorf("stamped %q, want %q", got, c.want)
			}
		})
	}
}

func TestDeletedConfigMapsAreNoError(t *testing.T) {
	r := &reconciler{fake.NewClientBuilder().Build(), epoch(1)}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{}); err != nil {
		t.Error(err)
	}
}

func TestFloorIsTheHighestStamp(t *testing.T) {
	api := fake.NewClientBuilder().WithObjects(
		configMap("a", "7"), configMap("b", "12"), configMap("c", ""), configMap("d", "x")).Build()
	floor, err := (&stamps{api, ""}).floor(t.Context())
	if floor != 12 || err != nil {
		t.Errorf("floor %d (%v), want 12", floor, err)
	}
}
