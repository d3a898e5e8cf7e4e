//go:build envtest

package envtest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/ndyakov/go-redlock/internal/apiserver"
)

// apiServer is the one that all tests share; each has a namespace of its own.
var apiServer *apiserver.Server

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
	began := time.Now()
	apiServer, err = apiserver.Start(dir)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = apiServer.Stop() }()
	fmt.Printf("kube-apiserver serves after %.1fs\n", time.Since(began).Seconds())

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
