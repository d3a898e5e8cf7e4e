//go:build envtest

package envtest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// inOverlays runs test with the manifests of each overlay.
func inOverlays(t *testing.T, test func(t *testing.T, all manifests, servers int)) {
	for overlay, servers := range overlays {
		t.Run(overlay, func(t *testing.T) {
			t.Parallel()
			test(t, render(t, overlay), servers)
		})
	}
}

// The API server takes all of it, and finds nothing to warn of; Pods pass the restricted standard, which the namespace enforces.
func TestManifestsPassTheAPIServer(t *testing.T) {
	t.Parallel()
	inOverlays(t, func(t *testing.T, all manifests, _ int) {
		var warnings warnings
		cfg := rest.CopyConfig(apiServer.Config)
		cfg.WarningHandlerWithContext = &warnings
		api, err := client.New(cfg, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		apply := func(obj *unstructured.Unstructured, opts ...client.ApplyOption) error {
			opts = append(opts, client.FieldOwner("test"), client.ForceOwnership)
			return api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(obj), opts...)
		}
		for _, obj := range all {
			if obj.GetKind() == "Namespace" { // without which nothing can be in it
				if err := apply(obj.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, obj := range all {
			if err := apply(obj.DeepCopy(), client.DryRunAll); err != nil {
				t.Errorf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
			}
		}
		for name, template := range templates(t, all) {
			pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
			pod.Name, pod.Namespace = name, only[corev1.Namespace](t, all, "Namespace").Name
			pod.Spec.Volumes = append(pod.Spec.Volumes, claims(pod)...)
			if err := api.Create(t.Context(), pod, client.DryRunAll); err != nil {
				t.Errorf("a Pod of %s: %v", name, err)
			}
			pod.Spec.SecurityContext = nil
			if err := api.Create(t.Context(), pod, client.DryRunAll); err == nil {
				t.Errorf("a Pod of %s may run as anybody: this test shows nothing", name)
			}
		}
		if all := warnings.all(); len(all) > 0 {
			t.Errorf("the API server warns: %q", all)
		}
	})
}

// claims are the volumes that a StatefulSet adds.
func claims(pod *corev1.Pod) (volumes []corev1.Volume) {
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			volumes = append(volumes, corev1.Volume{Name: m.Name})
		}
	}
	return volumes
}

// templates returns those of all Pods, by the name of what has them.
func templates(t *testing.T, all manifests) map[string]corev1.PodTemplateSpec {
	found := make(map[string]corev1.PodTemplateSpec)
	for _, d := range ofKind[appsv1.Deployment](t, all, "Deployment") {
		found[d.Name] = d.Spec.Template
	}
	for _, s := range ofKind[appsv1.StatefulSet](t, all, "StatefulSet") {
		found[s.Name] = s.Spec.Template
	}
	return found
}

type warnings struct {
	mu   sync.Mutex
	seen []string
}

func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, text)
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// flagOf returns the value of a flag of the controller.
func flagOf(t *testing.T, c corev1.Container, name string) string {
	t.Helper()
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	t.Fatalf("the controller has no --%s", name)
	return ""
}

func durationOf(t *testing.T, c corev1.Container, name string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(flagOf(t, c, name))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestManifestsFitTheController(t *testing.T) {
	t.Parallel()
	inOverlays(t, func(t *testing.T, all manifests, servers int) {
		pod := only[appsv1.Deployment](t, all, "Deployment").Spec.Template.Spec
		c := pod.Containers[0]

		grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
		if shutdown := durationOf(t, c, "shutdown-timeout"); grace < shutdown+5*time.Second {
			t.Errorf("the kubelet kills after %v, and the work may take %v: the release has not 5s", grace, shutdown)
		}
		if c.Lifecycle != nil {
			t.Error("the Deployment has a hook, which takes from its grace period")
		}
		for flag, probe := range map[string]string{"metrics-bind-address": "metrics", "health-probe-bind-address": "probes"} {
			_, want, _ := net.SplitHostPort(flagOf(t, c, flag))
			if got := portOf(t, c, probe); got != want {
				t.Errorf("port %s is %s, and --%s has %s", probe, got, flag, want)
			}
		}
		if c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
			t.Error("the probes ask for something else than /healthz and /readyz")
		}

		addrs := strings.Split(flagOf(t, c, "redis"), ",")
		reached := make(map[string]bool)
		for _, addr := range addrs {
			reached[serverAt(t, all, addr)] = true
		}
		if len(addrs) != servers || len(reached) != servers {
			t.Errorf("--redis has %q, which leads to %v: want %d servers", addrs, reached, servers)
		}
	})
}

func portOf(t *testing.T, c corev1.Container, name string) string {
	t.Helper()
	for _, p := range c.Ports {
		if p.Name == name {
			return fmt.Sprint(p.ContainerPort)
		}
	}
	t.Fatalf("container %s has no port %s", c.Name, name)
	return ""
}

// serverAt returns the one StatefulSet, of one Pod, that the Service at addr leads to.
func serverAt(t *testing.T, all manifests, addr string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	services := ofKind[corev1.Service](t, all, "Service")
	i := slices.IndexFunc(services, func(s corev1.Service) bool { return s.Name == host })
	if i < 0 {
		t.Fatalf("there is no Service %s", host)
	}
	spec := services[i].Spec
	var found []string
	for _, s := range ofKind[appsv1.StatefulSet](t, all, "StatefulSet") {
		if !labels.SelectorFromSet(spec.Selector).Matches(labels.Set(s.Spec.Template.Labels)) {
			continue
		}
		found = append(found, s.Name)
		target := portOf(t, s.Spec.Template.Spec.Containers[0], spec.Ports[0].TargetPort.StrVal)
		if *s.Spec.Replicas != 1 || fmt.Sprint(spec.Ports[0].Port) != port || target != port {
			t.Errorf("%s has %d replicas, and port %d of its Service leads to %s", s.Name, *s.Spec.Replicas, spec.Ports[0].Port, target)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s leads to %q", addr, found)
	}
	return found[0]
}

// What refers to something else by name or label finds it.
func TestManifestsReferToEachOther(t *testing.T) {
	t.Parallel()
	inOverlays(t, func(t *testing.T, all manifests, servers int) {
		secret := only[corev1.Secret](t, all, "Secret")
		pods := templates(t, all)
		for name, template := range pods {
			for _, e := range template.Spec.Containers[0].Env {
				if e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil {
					continue
				}
				if ref := e.ValueFrom.SecretKeyRef; ref.Name != secret.Name || len(secret.Data[ref.Key]) == 0 {
					t.Errorf("%s takes %s from Secret %s, which there is not", name, ref.Key, ref.Name)
				}
			}
		}
		account := only[corev1.ServiceAccount](t, all, "ServiceAccount").Name
		if got := only[appsv1.Deployment](t, all, "Deployment").Spec.Template.Spec.ServiceAccountName; got != account {
			t.Errorf("the Deployment has ServiceAccount %q, want %q", got, account)
		}
		if s := only[rbacv1.RoleBinding](t, all, "RoleBinding").Subjects[0]; s.Name != account || s.Namespace == "" {
			t.Errorf("the RoleBinding is for %s in %s", s.Name, s.Namespace)
		}
		for _, rule := range only[rbacv1.Role](t, all, "Role").Rules {
			if !slices.Equal(rule.Resources, []string{"configmaps"}) {
				t.Errorf("the controller has rights on %q", rule.Resources)
			}
		}
		covered := 0
		for _, b := range ofKind[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget") {
			covered += matches(t, b.Spec.Selector, pods)
		}
		if want := map[int]int{1: 1, 3: 4}[servers]; covered != want { // a budget for a single Pod would keep its node from being drained
			t.Errorf("PodDisruptionBudgets cover %d Pod templates, want %d", covered, want)
		}
		for _, obj := range all {
			if obj.GetNamespace() == "" && slices.Contains([]string{"Deployment", "StatefulSet", "Service", "Secret", "NetworkPolicy"}, obj.GetKind()) {
				t.Errorf("%s %s has no namespace", obj.GetKind(), obj.GetName())
			}
		}
	})
}

func matches(t *testing.T, selector *metav1.LabelSelector, pods map[string]corev1.PodTemplateSpec) (n int) {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if s.Matches(labels.Set(p.Labels)) {
			n++
		}
	}
	return n
}
