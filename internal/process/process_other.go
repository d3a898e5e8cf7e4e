//go:build !linux

package process

import (
	"os/exec"
	"time"
)

// dieWithParent does nothing: a child outlives a test binary that is killed.
func dieWithParent(*exec.Cmd) {}

// awaitStopped gives the signal time to be delivered.
func awaitStopped(int) { time.Sleep(20 * time.Millisecond) }
