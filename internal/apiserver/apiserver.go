//go:build envtest || kind

// Package apiserver starts a real kube-apiserver and etcd for tests.
package apiserver

import (
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Server is one that serves.
type Server struct {
	*envtest.Environment
	Path string // of a file that is its kubeconfig

	release func()
}

// Start starts the binaries that KUBEBUILDER_ASSETS leads to, and keeps its files in dir. They end with this process, however
// it ends.
func Start(dir string) (_ *Server, err error) {
	s := &Server{
		Environment: &envtest.Environment{ // bounds for a busy machine
			ControlPlaneStartTimeout: time.Minute,
			ControlPlaneStopTimeout:  time.Minute,
		},
		Path: filepath.Join(dir, "kubeconfig"),
	}
	if s.release, err = guard(dir, os.Getenv("KUBEBUILDER_ASSETS")); err != nil {
		return nil, err
	}
	if _, err = s.Environment.Start(); err == nil {
		err = os.WriteFile(s.Path, s.KubeConfig, 0o600)
	}
	if err != nil {
		_ = s.Stop()
		return nil, err
	}
	return s, nil
}

// Stop ends them.
func (s *Server) Stop() error {
	defer s.release()
	return s.Environment.Stop()
}
