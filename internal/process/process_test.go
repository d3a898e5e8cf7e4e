package process

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// variable has the test binary write its value, and end.
const variable = "PROCESS_TEST_SAYS"

func TestMain(m *testing.M) {
	if say := os.Getenv(variable); say != "" {
		fmt.Println(say)
		return
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, name string, args ...string) *Process {
	t.Helper()
	p, err := Start(exec.Command(name, args...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func awaitExit(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Exited():
	case <-time.After(10 * time.Second):
		t.Fatal("the process does not end")
	}
}

func TestErrTellsHowItEnded(t *testing.T) {
	for status, script := range map[string]string{"": "exit 0", "exit status 3": "exit 3"} {
		p := start(t, "sh", "-c", script)
		awaitExit(t, p)
		got := ""
		if err := p.Err(); err != nil {
			got = err.Error()
		}
		if got != status {
			t.Errorf("%q: %q", script, got)
		}
	}
}

// TestStoppedProcessHearsNothing: a frozen process does not end by SIGTERM before it goes on.
func TestStoppedProcessHearsNothing(t *testing.T) {
	p := start(t, "sleep", "600")
	for range 2 { // as often as one likes
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
		t.Fatal("it ended while it was stopped")
	case <-time.After(50 * time.Millisecond):
	}
	for range 2 {
		if err := p.Continue(); err != nil {
			t.Fatal(err)
		}
	}
	awaitExit(t, p)
	if err := p.Err(); err == nil || err.Error() != "signal: terminated" {
		t.Errorf("ended by: %v", err)
	}
}

func TestKillEndsAStoppedProcess(t *testing.T) {
	p := start(t, "sleep", "600")
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	p.Kill() // once it is gone, nothing
	if err := p.Continue(); err != nil {
		t.Errorf("going on: %v", err)
	}
	if err := p.Err(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("ended by: %v", err)
	}
}

func TestStartSaysWhyItCannot(t *testing.T) {
	if p, err := Start(exec.Command("/nonexistent/program")); err == nil || p != nil {
		t.Errorf("started %v, %v", p, err)
	}
}

func TestStartSelf(t *testing.T) {
	_, lines := StartSelf(t, variable+"=hello")
	if !lines.Scan() || lines.Text() != "hello" {
		t.Fatalf("it wrote %q, %v", lines.Text(), lines.Err())
	}
	if lines.Scan() {
		t.Errorf("it wrote %q as well", lines.Text())
	}
}
