package process

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill the process when the test binary dies, so that not even SIGKILL, which no
// cleanup survives, leaves a server behind.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// awaitStopped returns once the child, which was sent SIGSTOP, stands still or is gone: a signal is delivered some
// time after it is sent.
func awaitStopped(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil) == unix.EINTR {
	}
}
