// Package process gives tests child processes that they can kill, freeze and let go on, and that do not outlive them.
package process

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// Process is a child process, with the goroutine that waits for its end. Its methods are safe for concurrent use.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once it is gone

	mu     sync.Mutex
	frozen bool // by Stop
}

// Start starts cmd such that, where the system can do that, it does not outlive the test binary, not even frozen.
func Start(cmd *exec.Cmd) (*Process, error) {
	dieWithParent(cmd)
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.exited)
		// For Linux the parent is the thread, not the process: it must live as long as the child does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// StartSelf starts the test binary once more, with a variable, name=value, by which its TestMain knows what it is to be,
// and returns what it writes. It is killed when the test ends.
func StartSelf(tb testing.TB, variable string) (*Process, *bufio.Scanner) {
	tb.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = out.Close() })
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variable)
	cmd.Stdout, cmd.Stderr = in, os.Stderr
	p, err := Start(cmd)
	_ = in.Close() // the child has it
	if err != nil {
		tb.Fatalf("cannot start the test binary once more: %v", err)
	}
	tb.Cleanup(p.Kill)
	return p, bufio.NewScanner(out)
}

// Pid returns the process ID, which the process had also when it is gone.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited returns a channel that is closed once the process is gone and what it wrote to a writer that is not
// a file has been copied.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns how a process that is gone has ended: nil if it exited with 0.
func (p *Process) Err() error {
	if s := p.cmd.ProcessState; !s.Success() {
		return &exec.ExitError{ProcessState: s}
	}
	return nil
}

// Signal sends sig; for SIGSTOP there is Stop.
func (p *Process) Signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// Kill ends the process with SIGKILL, also a frozen one, and returns once it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // or it has exited already
	<-p.exited
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = false
}

// Stop freezes the process with SIGSTOP until Continue, and returns once it stands still.
func (p *Process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen {
		return nil
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	awaitStopped(p.Pid())
	p.frozen = true
	return nil
}

// Continue ends Stop; after Kill there is nothing to end.
func (p *Process) Continue() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.frozen {
		return nil
	}
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	p.frozen = false
	return nil
}
