//go:build envtest || kind

package apiserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// guard has kube-apiserver and etcd end with this process however it ends, also by a panic or a SIGKILL, of which
// envtest's own Stop knows nothing. It puts scripts before the binaries that note their process IDs, and a shell
// waits for the end of its standard input to kill what is still noted.
func guard(dir, assets string) (release func(), err error) {
	if assets == "" {
		return nil, fmt.Errorf("KUBEBUILDER_ASSETS names no folder: run make test-envtest or make test-kind-processes, which build the binaries")
	}
	pids := filepath.Join(dir, "pids")
	if err := os.Mkdir(pids, 0o700); err != nil {
		return nil, err
	}
	for _, name := range []string{"kube-apiserver", "etcd"} {
		binary := filepath.Join(assets, name)
		script := fmt.Sprintf("#!/bin/sh\necho $$ >'%s/%s'\nexec '%s' \"$@\"\n", pids, name, binary)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			return nil, err
		}
	}
	// The environment's value takes precedence over Environment.BinaryAssetsDirectory.
	if err := os.Setenv("KUBEBUILDER_ASSETS", dir); err != nil {
		return nil, err
	}

	janitor := exec.Command("sh", "-c", `cat >/dev/null; for f in "$0"/*; do kill -9 "$(cat "$f")"; done 2>/dev/null`, pids)
	janitor.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	in, err := janitor.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := janitor.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = os.RemoveAll(pids) // they have ended, and their IDs may be others' by now
		_ = in.Close()
		_ = janitor.Wait()
	}, nil
}
