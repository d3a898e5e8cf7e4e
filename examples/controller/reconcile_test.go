package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func configMap(name, stamp string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if stamp != "" {
		cm.Annotations = map[string]string{epochAnnotation: stamp}
	}
	return cm
}

func TestAStampIsRaisedAndNeverLowered(t *testing.T) {
	for name, c := range map[string]struct {
		stamp   string
		epoch   uint64
		want    string
		changed bool
		error   string // part of it, "" for none
	}{
		"first":         {"", 2, "2", true, ""},
		"raised":        {"1", 2, "2", true, ""},
		"kept":          {"2", 2, "2", false, ""},
		"never lowered": {"3", 2, "3", false, "ns/cm bears epoch 3"},
		"lease lost":    {"1", 0, "1", false, "lost"},
		"not an epoch":  {"x", 2, "x", false, "not an epoch"},
	} {
		t.Run(name, func(t *testing.T) {
			cm := configMap("cm", c.stamp)
			changed, err := stamp(cm, c.epoch)
			if c.error == "" && err != nil || c.error != "" && (err == nil || !strings.Contains(err.Error(), c.error)) {
				t.Errorf("error %v, want one with %q", err, c.error)
			}
			if got := cm.Annotations[epochAnnotation]; got != c.want || changed != c.changed {
				t.Errorf("stamped %q (changed: %v), want %q (%v)", got, changed, c.want, c.changed)
			}
		})
	}
}

func TestFloorIsTheHighestStamp(t *testing.T) {
	cms := []corev1.ConfigMap{*configMap("a", "7"), *configMap("b", "12"), *configMap("c", ""), *configMap("d", "x")}
	if floor := highestStamp(cms); floor != 12 {
		t.Errorf("floor %d, want 12", floor)
	}
}
