//go:build kind

package kind

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/klient/k8s/resources"
)

const (
	namespace  = "redlock-example"
	deployment = "example-controller"
	selector   = "app.kubernetes.io/name=" + deployment
	container  = "controller"
)

// pods are replicas as Pods of a Deployment in the cluster of KUBECONFIG, whose nodes are Docker containers.
type pods struct {
	manifest string
	api      client.Client
	kube     kubernetes.Interface
	lines    timeline
	stopping context.CancelFunc
	readers  sync.WaitGroup
	objects  []*unstructured.Unstructured // as applied
}

func newPods(t *testing.T, name string) site {
	t.Helper()
	cfg := environment.EnvConf().Client().RESTConfig()
	cfg.QPS = -1
	r, err := resources.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &pods{manifest: filepath.Join(*manifests, name+".yaml"), api: r.GetControllerRuntimeClient(), kube: kube}
}

func (p *pods) said() *timeline { return &p.lines }

func (p *pods) start(ctx context.Context) error {
	file, err := os.Open(p.manifest)
	if err != nil {
		return err
	}
	defer file.Close()
	for docs := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		o := new(unstructured.Unstructured)
		if err := docs.Decode(o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("%s: %w", p.manifest, err)
		}
		if err := p.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.ForceOwnership, client.FieldOwner("test-kind")); err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		p.objects = append(p.objects, o)
	}
	following, stop := context.WithCancel(context.Background())
	p.stopping = stop
	p.readers.Go(func() { p.follow(following) })
	return p.complete(ctx)
}

// life is that of one container, from its start to its end.
type life struct {
	pod      string
	restarts int32
}

// running returns the containers of the Deployment that run.
func (p *pods) running(ctx context.Context) (lives []life) {
	for _, pod := range p.list(ctx) {
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Running != nil {
				lives = append(lives, life{pod.Name, c.RestartCount})
			}
		}
	}
	return lives
}

// follow reads what every container of the Deployment says.
func (p *pods) follow(ctx context.Context) {
	seen := map[life]bool{}
	for sleep(ctx, 200*time.Millisecond) == nil {
		for _, l := range p.running(ctx) {
			if !seen[l] {
				seen[l] = true
				p.readers.Go(func() { p.read(ctx, l) })
			}
		}
	}
}

func (p *pods) read(ctx context.Context, l life) {
	out, err := p.kube.CoreV1().Pods(namespace).GetLogs(l.pod, &corev1.PodLogOptions{Container: container, Follow: true}).Stream(ctx)
	if err != nil {
		if ctx.Err() == nil {
			p.lines.breaks(l.pod, err)
		}
		return
	}
	defer out.Close()
	p.lines.read(out)
	ended := time.Now()
	if ctx.Err() != nil {
		return
	}
	p.lines.end(l.pod, ended)
	// The log ends with its container, or else the connection has. The kubelet says so a moment later.
	if sleep(ctx, 10*time.Second) == nil && slices.Contains(p.running(ctx), l) {
		p.lines.breaks(l.pod, errors.New("its log ended before its container"))
	}
}

func (p *pods) list(ctx context.Context) []corev1.Pod {
	all, err := p.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil
	}
	return all.Items
}

func (p *pods) replicas(ctx context.Context) (names []string, err error) {
	for _, pod := range p.list(ctx) {
		if pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			names = append(names, pod.Name)
		}
	}
	return names, ctx.Err()
}

// complete waits until the Deployment is as it should be.
func (p *pods) complete(ctx context.Context) error {
	for {
		d, err := p.kube.AppsV1().Deployments(namespace).Get(ctx, deployment, metav1.GetOptions{})
		if err == nil && isComplete(d) {
			return nil
		}
		if stop := sleep(ctx, 100*time.Millisecond); stop != nil {
			return fmt.Errorf("the Deployment is not complete: %w (%v)\n%s", stop, err, p.whatIs())
		}
	}
}

func isComplete(d *appsv1.Deployment) bool {
	n := *d.Spec.Replicas
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.Replicas == n && s.UpdatedReplicas == n && s.AvailableReplicas == n
}

// whatIs says how the Pods are, for errors.
func (p *pods) whatIs() (text string) {
	all, err := p.kube.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, pod := range all.Items {
		text += fmt.Sprintf("%s on %s: %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase)
		for _, c := range pod.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil {
				text += fmt.Sprintf(", %s: %s", w.Reason, w.Message)
			}
		}
		text += "\n"
	}
	return text
}

func (p *pods) stop(ctx context.Context, name string) error {
	return p.kube.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

// onNode runs a command on the node of a Pod.
func (p *pods) onNode(ctx context.Context, pod *corev1.Pod, command ...string) error {
	out, err := exec.CommandContext(ctx, "docker", append([]string{"exec", pod.Spec.NodeName}, command...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("on node %s: %q: %w: %s", pod.Spec.NodeName, command, err, out)
	}
	return nil
}

// kill kills the process: a Pod that is deleted without grace would still be asked first.
func (p *pods) kill(ctx context.Context, name string) (time.Time, error) {
	pod, err := p.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, err
	}
	err = p.onNode(ctx, pod, "pkill", "-KILL", "-f", "--", "--identity="+name)
	return time.Now(), err
}

// isolate drops what the Pod sends to Redis, as a NetworkPolicy would where the network enforces one.
func (p *pods) isolate(ctx context.Context, name string) (heal func() error, err error) {
	pod, err := p.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	rule := []string{"FORWARD", "-s", pod.Status.PodIP, "-p", "tcp", "--dport", "6379", "-j", "DROP"}
	heal = func() error {
		return p.onNode(context.Background(), pod, append([]string{"iptables", "-D"}, rule...)...)
	}
	return heal, p.onNode(ctx, pod, append([]string{"iptables", "-I"}, rule...)...)
}

func (p *pods) rollout(ctx context.Context) error {
	restart := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"restarted":%q}}}}}`, time.Now())
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: deployment}}
	if err := p.api.Patch(ctx, d, client.RawPatch("application/strategic-merge-patch+json", []byte(restart))); err != nil {
		return err
	}
	return p.complete(ctx)
}

func (p *pods) drain(ctx context.Context, name string) (err error) {
	pod, err := p.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	node := pod.Spec.NodeName
	if err := p.cordon(ctx, node, true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.cordon(context.WithoutCancel(ctx), node, false)) }()
	for _, pod := range p.list(ctx) {
		if pod.Spec.NodeName == node {
			if err := p.evict(ctx, pod.Name); err != nil {
				return err
			}
		}
	}
	return p.complete(ctx)
}

func (p *pods) cordon(ctx context.Context, node string, on bool) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	return p.api.Patch(ctx, n, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, on)))
}

// evict asks until the PodDisruptionBudget allows it.
func (p *pods) evict(ctx context.Context, name string) error {
	for {
		err := p.kube.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		if !apierrors.IsTooManyRequests(err) {
			return client.IgnoreNotFound(err)
		}
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return fmt.Errorf("%s cannot be evicted: %w", name, err)
		}
	}
}

func (p *pods) close(ctx context.Context) error {
	if p.stopping != nil {
		p.stopping()
		p.readers.Wait()
	}
	var errs []error
	for _, o := range p.objects {
		if o.GetNamespace() == "" {
			errs = append(errs, client.IgnoreNotFound(p.api.Delete(ctx, o)))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		_, err := p.kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return errors.Join(errs...)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return errors.Join(append(errs, fmt.Errorf("the namespace is still there: %w", err))...)
		}
	}
}
