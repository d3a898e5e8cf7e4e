package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// crew is the replicas of the demo, as processes of this binary.
type crew struct {
	options
	events  chan event
	history history // what next has returned

	mu        sync.Mutex
	processes map[string]*process // by name; the latest of each
}

// process is one replica. Its standard input is held open: it ends when that does, and so with the demo.
type process struct {
	cmd      *exec.Cmd
	stdin    io.Closer
	log      *tail
	expected bool          // to end: it was signalled
	done     chan struct{} // closed once it is gone
}

func newCrew(o options) *crew {
	return &crew{options: o, events: make(chan event, 1024), processes: make(map[string]*process)}
}

func (c *crew) names() []string {
	var names []string
	for i := range c.replicas {
		names = append(names, fmt.Sprintf("replica-%d", i+1))
	}
	return names
}

func (c *crew) startAll() error {
	for _, name := range c.names() {
		if err := c.start(name); err != nil {
			return err
		}
	}
	return nil
}

func (c *crew) start(name string) error {
	cmd, err := c.command(name)
	if err != nil {
		return err
	}
	p := &process{cmd: cmd, log: &tail{}, done: make(chan struct{})}
	if c.verbose {
		p.log.prefix, p.log.out = "      ["+name+"] ", os.Stderr
	}
	cmd.Stderr = p.log
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	started := make(chan error, 1)
	go func() {
		// Linux takes the thread that started a process for its parent: it must live as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.follow(name, p, stdout)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	c.mu.Lock()
	c.processes[name] = p
	c.mu.Unlock()
	return nil
}

func (c *crew) command(name string) (*exec.Cmd, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"--replica", "--identity", name, "--redis", c.redis, "--namespace", c.namespace, "--name", c.name,
		"--lease-duration", c.leaseDuration.String(), "--renew-deadline", c.renewDeadline.String(),
		"--retry-period", c.retryPeriod.String(), "--kubeconfig", c.kubeconfig}
	if c.redisTLS {
		args = append(args, "--redis-tls")
	}
	if c.verbose {
		args = append(args, "--verbose")
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), fromDemo+"=1")
	dieWithParent(cmd)
	return cmd, nil
}

// follow passes on what a replica reports, and its end.
func (c *crew) follow(name string, p *process, stdout io.Reader) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			c.post(e)
		}
	}
	detail := "exit status 0"
	if err := p.cmd.Wait(); err != nil {
		detail = err.Error()
	}
	e := event{At: time.Now(), Replica: name, Event: exited, Detail: detail}
	close(p.done)
	c.post(e)
}

// post never blocks a replica: what nobody reads is dropped.
func (c *crew) post(e event) {
	select {
	case c.events <- e:
	default:
	}
}

func (c *crew) next(ctx context.Context) (event, error) {
	select {
	case e := <-c.events:
		c.history.note(e)
		return e, nil
	case <-ctx.Done():
		return event{}, ctx.Err()
	}
}

// await reads events until happened says so. The events of different replicas may come in another order than they
// happened: compare their times.
func (c *crew) await(ctx context.Context, what string, happened func() bool) error {
	for !happened() {
		e, err := c.next(ctx)
		if err != nil {
			return fmt.Errorf("it did not happen that %s: %w", what, err)
		}
		if e.Event == exited && !c.expected(e.Replica) {
			return fmt.Errorf("%s ended by itself: %s; its log ends with:\n%s", e.Replica, e.Detail, c.logOf(e.Replica))
		}
		if e.Event == refused {
			return fmt.Errorf("a write of %s was refused: %s", e.Replica, e.Detail)
		}
	}
	return nil
}

// expected reports whether a replica was signalled, and so may have ended.
func (c *crew) expected(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.processes[name]
	return p != nil && p.expected
}

// signal signals a replica, which is expected to end.
func (c *crew) signal(name string, sig syscall.Signal) error {
	c.mu.Lock()
	p := c.processes[name]
	if p != nil {
		p.expected = true
	}
	c.mu.Unlock()
	if p == nil {
		return fmt.Errorf("%s does not run", name)
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signalling %s: %w", name, err)
	}
	return nil
}

// gone returns a channel that is closed when the replica's process is gone.
func (c *crew) gone(name string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name].done
}

func (c *crew) logOf(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name].log.String()
}

func (c *crew) pid(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.processes[name]; p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// pids tells which process is whose.
func (c *crew) pids() string {
	var all []string
	for _, name := range c.names() {
		all = append(all, fmt.Sprintf("%s is process %d", name, c.pid(name)))
	}
	return strings.Join(all, ", ") + "."
}

// running returns the processes that are not gone.
func (c *crew) running() map[string]*process {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := make(map[string]*process)
	for name, p := range c.processes {
		select {
		case <-p.done:
		default:
			p.expected = true
			left[name] = p
		}
	}
	return left
}

// stopAll stops the replicas gracefully, and waits for them. It reports those that do not end well.
func (c *crew) stopAll(ctx context.Context) error {
	left := c.running()
	for _, p := range left {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	var errs []error
	for name, p := range left {
		select {
		case <-p.done:
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				errs = append(errs, fmt.Errorf("%s ended with %v; its log ends with:\n%s", name, p.cmd.ProcessState, p.log))
			}
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("%s did not stop: %w", name, ctx.Err()))
		}
	}
	return errors.Join(errs...)
}

// killAll ends what still runs, and waits for it.
func (c *crew) killAll() {
	left := c.running()
	for _, p := range left {
		_ = p.cmd.Process.Kill()
	}
	for _, p := range left {
		<-p.done
	}
}

// tail is the log of a replica: it keeps the last lines, and shows all of them if there is an out.
type tail struct {
	prefix string
	out    io.Writer

	mu    sync.Mutex
	rest  string // of a line
	lines []string
}

const tailLines = 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(t.rest+string(b), "\n")
	t.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		if t.out != nil {
			_, _ = fmt.Fprintf(t.out, "%s%s\n", t.prefix, line)
		}
		t.lines = append(t.lines, line)
	}
	t.lines = t.lines[max(0, len(t.lines)-tailLines):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(append(t.lines[:len(t.lines):len(t.lines)], t.rest), "\n")
}
