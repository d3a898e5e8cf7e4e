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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"github.com/ndyakov/go-redlock/internal/apiserver"
	"github.com/ndyakov/go-redlock/internal/redistest"
)

// What the processes of all scenarios share.
var shared struct {
	api    *apiserver.Server
	dir    string
	binary string
}

func nothing(ctx context.Context, _ *envconf.Config) (context.Context, error) { return ctx, nil }

// startProcessSite starts an API server and builds the example.
func startProcessSite(ctx context.Context, _ *envconf.Config) (_ context.Context, err error) {
	if shared.dir, err = os.MkdirTemp("", "kind-"); err != nil {
		return ctx, err
	}
	if shared.api, err = apiserver.Start(shared.dir); err != nil {
		return ctx, err
	}
	shared.binary = filepath.Join(shared.dir, "controller")
	out, err := exec.CommandContext(ctx, "go", "build", "-o", shared.binary, "../../examples/controller").CombinedOutput()
	if err != nil {
		return ctx, fmt.Errorf("building the example: %w\n%s", err, out)
	}
	return ctx, nil
}

func stopProcessSite(ctx context.Context, _ *envconf.Config) (context.Context, error) {
	return ctx, errors.Join(shared.api.Stop(), os.RemoveAll(shared.dir))
}

// processes are replicas as processes, each with a network of its own to the Redis servers.
type processes struct {
	t       *testing.T
	servers []*redistest.Server
	lines   timeline

	mu      sync.Mutex
	made    int
	running map[string]*process
}

type process struct {
	cmd     *exec.Cmd
	stdin   io.Closer // open as long as the test lives: the replica ends with it
	proxies []*redistest.Proxy
	ended   chan struct{}
}

func newProcesses(t *testing.T, servers int) *processes {
	return &processes{t: t, servers: redistest.StartN(t, servers, redistest.WithAOF()), running: make(map[string]*process)}
}

func (p *processes) said() *timeline { return &p.lines }

func (p *processes) start(ctx context.Context) error {
	for range 3 {
		if _, err := p.add(ctx); err != nil {
			return err
		}
	}
	return nil
}

// add starts one more, and waits until it campaigns.
func (p *processes) add(ctx context.Context) (name string, err error) {
	p.mu.Lock()
	p.made++
	name = fmt.Sprintf("replica-%d", p.made)
	p.mu.Unlock()
	r := &process{ended: make(chan struct{})}
	var addrs []string
	for _, s := range p.servers {
		proxy := redistest.NewProxy(p.t, s.Addr())
		r.proxies = append(r.proxies, proxy)
		addrs = append(addrs, proxy.Addr())
	}
	r.cmd = exec.Command(shared.binary, "--replica", "--redis", strings.Join(addrs, ","), "--identity", name, "--name", p.t.Name(),
		"--lease-duration", leaseDuration.String(), "--renew-deadline", renewDeadline.String(), "--retry-period", retryPeriod.String(),
		"--kubeconfig", shared.api.Path, "--watch-namespace", "default")
	r.cmd.Env = append(os.Environ(), "EXAMPLE_CONTROLLER_DEMO=1") // it ends when its standard input does
	r.cmd.Stderr = io.Discard
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		return name, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return name, err
	}
	if err := r.cmd.Start(); err != nil {
		return name, err
	}
	p.mu.Lock()
	p.running[name] = r
	p.mu.Unlock()
	go func() {
		defer close(r.ended)
		p.lines.read(out)
		_ = r.cmd.Wait()
		p.lines.end(name, time.Now())
	}()
	return name, p.await(ctx, name, "running")
}

func (p *processes) await(ctx context.Context, name, what string) error {
	for !p.lines.has(name, what) {
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%s has not said that it is %s: %w", name, what, err)
		}
	}
	return nil
}

// take removes one from those that are meant to stay.
func (p *processes) take(name string) *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.running[name]
	delete(p.running, name)
	return r
}

func (p *processes) replicas(context.Context) (names []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.running {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

func (p *processes) signal(ctx context.Context, name string, s syscall.Signal) error {
	r := p.take(name)
	if err := r.cmd.Process.Signal(s); err != nil {
		return err
	}
	return r.wait(ctx, name)
}

func (r *process) wait(ctx context.Context, name string) error {
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not end: %w", name, ctx.Err())
	}
}

func (p *processes) stop(ctx context.Context, name string) error {
	if err := p.signal(ctx, name, syscall.SIGTERM); err != nil {
		return err
	}
	_, err := p.add(ctx)
	return err
}

func (p *processes) kill(ctx context.Context, name string) (time.Time, error) {
	if err := p.signal(ctx, name, syscall.SIGKILL); err != nil {
		return time.Time{}, err
	}
	killed := time.Now()
	_, err := p.add(ctx)
	return killed, err
}

func (p *processes) isolate(_ context.Context, name string) (heal func() error, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.running[name]
	for _, proxy := range r.proxies {
		proxy.Hold(redistest.Both)
	}
	return func() error {
		for _, proxy := range r.proxies {
			proxy.Release(redistest.Both)
		}
		p.take(name)
		// A manager that has lost its lease ends its process; a Deployment starts it again.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.wait(ctx, name); err != nil {
			return err
		}
		_, err := p.add(ctx)
		return err
	}, nil
}

func (p *processes) rollout(ctx context.Context) error {
	old, err := p.replicas(ctx)
	if err != nil {
		return err
	}
	for _, name := range old { // maxSurge 1, maxUnavailable 0
		if _, err := p.add(ctx); err != nil {
			return err
		}
		if err := p.signal(ctx, name, syscall.SIGTERM); err != nil {
			return err
		}
	}
	return nil
}

// A node has one process here.
func (p *processes) drain(ctx context.Context, name string) error { return p.stop(ctx, name) }

func (p *processes) close(ctx context.Context) error {
	names, _ := p.replicas(ctx)
	var errs []error
	for _, name := range names {
		errs = append(errs, p.signal(ctx, name, syscall.SIGTERM))
	}
	return errors.Join(errs...)
}
