package main

import (
	"os/exec"
	"syscall"
)

// dieWithParent has a replica end with the demo, also with one that was killed.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
