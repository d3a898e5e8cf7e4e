//go:build kind

package kind

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
)

// manifests is the folder with one rendered file for each deployment; without it the replicas are processes.
var manifests = flag.String("manifests", "", "`folder` of rendered manifests, single.yaml and redlock.yaml, for the cluster that KUBECONFIG names")

var environment env.Environment

func TestMain(m *testing.M) {
	flag.Parse()
	ctrllog.SetLogger(logr.Discard())
	cfg := envconf.New()
	setUp, tearDown := startProcessSite, stopProcessSite
	if *manifests != "" {
		cfg = envconf.NewWithKubeConfig(os.Getenv("KUBECONFIG"))
		setUp, tearDown = nothing, nothing
	}
	environment = env.NewWithConfig(cfg).Setup(setUp).Finish(tearDown)
	before := goleak.IgnoreCurrent()
	code := environment.Run(m)
	pooled := goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop") // client-go never closes them
	if err := goleak.Find(before, pooled); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "kind:", err)
		code = 1
	}
	figures.print()
	os.Exit(code)
}

func newSite(t *testing.T, name string, servers int) site {
	if *manifests != "" {
		return newPods(t, name)
	}
	return newProcesses(t, servers)
}

// figures are what was measured.
var figures table

type table struct {
	mu   sync.Mutex
	rows []string
}

func (t *table) add(name, what string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, fmt.Sprintf("| %-7s | %-85s | %9.1f ms |", name, what, float64(d.Microseconds())/1000))
}

func (t *table) print() {
	for _, row := range t.rows {
		fmt.Println(row)
	}
}
