package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ndyakov/go-redlock/examples/controller/fenced"
)

func configMap(name, epoch string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if epoch != "" {
		cm.Annotations = map[string]string{fenced.EpochAnnotation: epoch}
	}
	return cm
}

func TestFloorIsTheHighestStamp(t *testing.T) {
	cms := []corev1.ConfigMap{*configMap("a", "7"), *configMap("b", "12"), *configMap("c", ""), *configMap("d", "x")}
	if floor := highestStamp(cms); floor != 12 {
		t.Errorf("floor %d, want 12", floor)
	}
}
