package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asProgram has the test binary be the program: the demo and its replicas then run with the race detector as well.
const asProgram = "EXAMPLE_CONTROLLER_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// program is a running process of this program.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	exited chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// start starts the program. It, and all the replicas that it has named, must be gone at the end of the test.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(os.Args[0], args...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stdout, p.cmd.Stderr = p, p
	// A replica that is left behind holds the output open: do not wait for it for ever.
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		p.checkNobodyIsLeft()
		if t.Failed() {
			t.Logf("%q printed:\n%s", args, p.output())
		}
	})
	return p
}

// exitCode awaits the end.
func (p *program) exitCode(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(within):
		p.t.Fatalf("it still runs after %v", within)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *program) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

const patience = 30 * time.Second

// await returns the submatches of the first text after offset that matches, and where it ends.
func (p *program) await(offset int, pattern string) ([]string, int) {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		text := p.output()[offset:]
		if at := re.FindStringIndex(text); at != nil {
			return re.FindStringSubmatch(text), offset + at[1]
		}
		select {
		case <-p.exited:
			p.t.Fatalf("it ended (%v) without printing %q", p.cmd.ProcessState, pattern)
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%q was not printed within %v", pattern, patience)
		}
	}
}

var pidPattern = regexp.MustCompile(`(replica-\d) is process (\d+)`)

// pids returns the processes of the replicas.
func (p *program) pids() map[string]int {
	pids := make(map[string]int)
	for _, m := range pidPattern.FindAllStringSubmatch(p.output(), -1) {
		pids[m[1]], _ = strconv.Atoi(m[2])
	}
	return pids
}

func (p *program) checkNobodyIsLeft() {
	for name, pid := range p.pids() {
		for deadline := time.Now().Add(5 * time.Second); alive(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				p.t.Errorf("%s, process %d, was left behind", name, pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
		}
	}
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func TestHelpIsComplete(t *testing.T) {
	p := start(t, "--help")
	if code := p.exitCode(patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{
		"go run ./examples/controller", "REDIS_PASSWORD", "-redis ", "-redis-tls", "-once", "-replica\n", "-replicas", "-identity",
		"-namespace", "-name", "-lease-duration", "(default 3s)", "-renew-deadline", "-retry-period", "-kubeconfig", "-in-cluster",
		"-watch-namespace", "-health-probe-bind-address", "-metrics-bind-address", "-shutdown-timeout", "-verbose",
	} {
		if !strings.Contains(p.output(), want) {
			t.Errorf("%q is missing", want)
		}
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"unexpected argument":      {"once"},
		"not defined":              {"--twice"},
		"--replicas is 2":          {"--replicas", "2"},
		"a replica needs":          {"--replica"},
		"need --replica":           {"--in-cluster"},
		"needs --redis":            {"--redis-tls"},
		"an address is empty":      {"--redis", "a:1,,b:1"},
		"--retry-period 0s":        {"--retry-period", "0"},
		"--renew-deadline 3s":      {"--renew-deadline", "3s"},
		"--shutdown-timeout is 0s": {"--shutdown-timeout", "0"},
	} {
		_, err := parse(args, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", args, err, want)
		}
	}
	p := start(t, "--twice")
	if code := p.exitCode(patience); code != 2 || !strings.Contains(p.output(), "--help") {
		t.Errorf("exit code %d, output %q", code, p.output())
	}
}
