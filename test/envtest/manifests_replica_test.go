//go:build envtest

package envtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/ndyakov/go-redlock/examples/controller/fenced"
	"github.com/ndyakov/go-redlock/internal/redistest"
)

// deployment is an overlay without the kubelet: its Redis servers and its replicas as processes, with the arguments, the
// Redis user and the rights in the cluster that the manifests give them.
type deployment struct {
	t              *testing.T
	api            client.Client
	namespace      string
	redis          []*redistest.Server
	user, password string // in Redis
	binary         string
	args           []string
	made           int // replicas so far

	mu    sync.Mutex
	terms []replicaEvent // "leading" of all replicas, in order
}

// replicaEvent is a line of a replica's standard output.
type replicaEvent struct {
	Replica, Event string
	Epoch          uint64
	by             *replica
}

// quick has what takes a multiple of the manifests' LeaseDuration end in seconds. Of flags given twice the last counts.
var quick = []string{"--lease-duration=3s", "--renew-deadline=2s", "--retry-period=500ms"}

func deploy(t *testing.T, all manifests, binary string) *deployment {
	t.Helper()
	api, namespace := newNamespace(t)
	d := &deployment{t: t, api: api, namespace: namespace, binary: binary}
	installFence(t, api, namespace)
	d.startRedis(all)
	controller := only[appsv1.Deployment](t, all, "Deployment").Spec.Template.Spec.Containers[0]
	for _, arg := range controller.Args {
		switch {
		case strings.HasPrefix(arg, "--redis="):
			var addrs []string
			for _, s := range d.redis {
				addrs = append(addrs, s.Addr())
			}
			arg = "--redis=" + strings.Join(addrs, ",")
		case arg == "--in-cluster":
			arg = "--kubeconfig=" + d.account(all)
		}
		d.args = append(d.args, arg)
	}
	d.args = append(d.args, quick...)
	d.user, d.password = d.variable(all, controller, "REDIS_USERNAME"), d.variable(all, controller, "REDIS_PASSWORD")
	return d
}

// startRedis starts the servers. What looks at them is the default user, which is on for that.
func (d *deployment) startRedis(all manifests) {
	for _, s := range ofKind[appsv1.StatefulSet](d.t, all, "StatefulSet") {
		c := s.Spec.Template.Spec.Containers[0]
		expand := strings.NewReplacer("$(POD_NAMESPACE)", d.namespace, "$(REDIS_PASSWORD)", d.variable(all, c, "REDIS_PASSWORD"))
		var args []string
		for _, arg := range c.Args {
			args = append(args, expand.Replace(arg))
		}
		args = without(d.t, args, "--dir", "/data")
		args = without(d.t, args, "--user", "default", "off")
		d.redis = append(d.redis, redistest.Start(d.t, redistest.WithArgs(args...)))
	}
}

// without returns args without a part of them.
func without(t *testing.T, args []string, part ...string) []string {
	t.Helper()
	const sep = "\x00"
	before, after, found := strings.Cut(strings.Join(args, sep), strings.Join(part, sep)+sep)
	if !found {
		t.Fatalf("%q are not in %q", part, args)
	}
	return strings.Split(before+after, sep)
}

// variable returns the value of an environment variable in a container.
func (d *deployment) variable(all manifests, c corev1.Container, name string) string {
	d.t.Helper()
	for _, e := range c.Env {
		if e.Name == name && e.ValueFrom != nil {
			return string(only[corev1.Secret](d.t, all, "Secret").Data[e.ValueFrom.SecretKeyRef.Key])
		}
		if e.Name == name {
			return e.Value
		}
	}
	d.t.Fatalf("container %s has no variable %s", c.Name, name)
	return ""
}

// addingUser because Environment.AddUser is not safe for concurrent use.
var addingUser sync.Mutex

// account makes what the ServiceAccount may do, and returns a kubeconfig for it.
func (d *deployment) account(all manifests) string {
	d.t.Helper()
	var name string
	for _, obj := range all {
		obj = obj.DeepCopy()
		obj.SetNamespace(d.namespace)
		switch obj.GetKind() {
		case "ServiceAccount":
			name = obj.GetName()
		case "RoleBinding":
			obj.Object["subjects"].([]any)[0].(map[string]any)["namespace"] = d.namespace
		case "Role":
		default:
			continue
		}
		if err := d.api.Create(d.t.Context(), obj); err != nil {
			d.t.Fatal(err)
		}
	}
	addingUser.Lock()
	user, err := apiServer.AddUser(envtest.User{Name: "system:serviceaccount:" + d.namespace + ":" + name}, nil)
	addingUser.Unlock()
	if err != nil {
		d.t.Fatal(err)
	}
	config, err := user.KubeConfig()
	if err != nil {
		d.t.Fatal(err)
	}
	path := filepath.Join(d.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		d.t.Fatal(err)
	}
	return path
}

// replica is one of the Deployment's.
type replica struct {
	d      *deployment
	name   string
	probes string // address
	cmd    *exec.Cmd
	in     io.Closer
	stderr bytes.Buffer
	exited chan struct{}
}

func (d *deployment) start() *replica {
	d.t.Helper()
	d.made++
	r := &replica{d: d, name: "replica-" + strconv.Itoa(d.made), probes: freeAddr(d.t), exited: make(chan struct{})}
	expand := strings.NewReplacer("$(POD_NAME)", r.name, "$(POD_NAMESPACE)", d.namespace, "=:8081", "="+r.probes, "=:8080", "=127.0.0.1:0")
	r.cmd = exec.Command(d.binary)
	for _, arg := range d.args {
		r.cmd.Args = append(r.cmd.Args, expand.Replace(arg))
	}
	r.cmd.Env = append(os.Environ(), "REDIS_USERNAME="+d.user, "REDIS_PASSWORD="+d.password,
		"EXAMPLE_CONTROLLER_DEMO=1") // has it end when this process does
	r.cmd.Stderr = &r.stderr
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		d.t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go r.read(out)
	d.t.Cleanup(r.end)
	return r
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (r *replica) read(out io.Reader) {
	defer close(r.exited)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		e := replicaEvent{by: r}
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Event == "leading" {
			r.d.mu.Lock()
			r.d.terms = append(r.d.terms, e)
			r.d.mu.Unlock()
		}
	}
	_ = r.cmd.Wait()
}

func (r *replica) end() {
	_ = r.cmd.Process.Kill()
	<-r.exited
	_ = r.in.Close()
	if races(r.stderr.String()) > 0 {
		r.d.t.Errorf("%s has data races", r.name)
	}
	if r.d.t.Failed() {
		r.d.t.Logf("%s wrote:\n%s", r.name, &r.stderr)
	}
}

func (r *replica) signal(sig syscall.Signal) {
	r.d.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.d.t.Fatal(err)
	}
}

// exitCode awaits the end.
func (r *replica) exitCode(within time.Duration) int {
	r.d.t.Helper()
	select {
	case <-r.exited:
	case <-time.After(within):
		r.d.t.Fatalf("%s still runs after %v", r.name, within)
	}
	return r.cmd.ProcessState.ExitCode()
}

// ready asks what the kubelet asks.
func (r *replica) ready(path string) bool {
	c := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := c.Get("http://" + r.probes + path)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// term awaits the nth term.
func (d *deployment) term(n int) (e replicaEvent) {
	d.t.Helper()
	eventually(d.t, "term "+strconv.Itoa(n)+" begins", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.terms) < n {
			return false
		}
		e = d.terms[n-1]
		return true
	})
	return e
}

// awaitStamp waits until cm bears the epoch.
func (d *deployment) awaitStamp(cm *corev1.ConfigMap, epoch uint64) {
	d.t.Helper()
	eventually(d.t, "the object bears epoch "+strconv.FormatUint(epoch, 10), func() bool {
		if err := d.api.Get(d.t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil {
			d.t.Fatal(err)
		}
		return cm.Annotations[fenced.EpochAnnotation] == strconv.FormatUint(epoch, 10)
	})
}
