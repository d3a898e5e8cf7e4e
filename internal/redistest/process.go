package redistest

import (
	"os/exec"
	"runtime"
)

// process is a child process, with the goroutine that waits for its end.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once it is gone
}

// spawn starts cmd such that, where the system can do that, it does not outlive the test binary.
func spawn(cmd *exec.Cmd) (*process, error) {
	dieWithParent(cmd)
	p := &process{cmd: cmd, exited: make(chan struct{})}
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
	return p, <-started
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill returns once the process is gone. It does nothing if it never started.
func (p *process) kill() {
	if p.cmd.Process != nil {
		_ = p.cmd.Process.Kill() // or it has exited already
	}
	<-p.exited
}
