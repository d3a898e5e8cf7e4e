package redistest

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the server end with the test binary, also one that was killed.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
