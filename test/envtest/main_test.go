//go:build envtest

package envtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// apiServer is the one that all tests share; each has a namespace of its own.
var apiServer = &envtest.Environment{
	ControlPlaneStartTimeout: time.Minute, // a busy machine
	ControlPlaneStopTimeout:  time.Minute,
}

// kubeconfig is a file by which the candidates' processes find it.
var kubeconfig string

func TestMain(m *testing.M) {
	if plan := os.Getenv(planVariable); plan != "" {
		candidate(plan)
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctrllog.SetLogger(logr.Discard()) // the candidates, in processes of their own, do log
	dir, err := os.MkdirTemp("", "envtest-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	release, err := guard(dir, os.Getenv("KUBEBUILDER_ASSETS"))
	if err != nil {
		return fail(err)
	}
	defer release()

	began := time.Now()
	_, err = apiServer.Start()
	defer func() { _ = apiServer.Stop() }()
	if err != nil {
		return fail(err)
	}
	fmt.Printf("kube-apiserver serves after %.1fs\n", time.Since(began).Seconds())
	kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, apiServer.KubeConfig, 0o600); err != nil {
		return fail(err)
	}

	before := goleak.IgnoreCurrent()
	code := m.Run()
	pooled := goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop") // client-go never closes them
	if err := goleak.Find(before, pooled); err != nil && code == 0 {
		code = fail(err)
	}
	times.print(os.Stdout)
	return code
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "envtest:", err)
	return 1
}
