//go:build envtest

package envtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// planVariable has the test binary be a candidate that follows this plan.
const planVariable = "ENVTEST_CANDIDATE"

// plan is all that the process of a candidate is told.
type plan struct {
	ID, Kubeconfig  string
	Namespace, Name string
	Lock            lockKind
	Redis           []string // one address, or those of a Redlock
	Witness         string   // address of the Redis that sees who leads
	Durations       durations
	Linger          time.Duration // how long the work takes to end
}

// lockKind is by what a candidate is elected.
type lockKind string

const (
	byLease lockKind = "Lease"
	byBoth  lockKind = "Lease and Redis"
	byRedis lockKind = "Redis"
)

type durations struct{ Lease, Renew, Retry time.Duration }

// event is one line of a candidate's standard output.
type event struct {
	What  string // "ready", "leading", "stopped leading", "exit"
	Epoch uint64
	Error string
	Leaks string // what of the library still ran when everything was closed
	At    int64  // the machine's monotonic clock, which processes share
}

func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

var stdout sync.Mutex

func tell(e event) {
	stdout.Lock()
	defer stdout.Unlock()
	e.At = now()
	line, _ := json.Marshal(e)
	fmt.Println(string(line))
}

// candidate is the process of a controller. It ends on SIGTERM, as Kubernetes asks for it, on the loss of its lease,
// and when the test does: then its standard input ends.
func candidate(line string) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	tell(event{What: "ready"}) // for signals
	ctrllog.SetLogger(klog.Background())
	var p plan
	err := json.Unmarshal([]byte(line), &p)
	if err == nil {
		err = p.run(ctx)
	}
	e := event{What: "exit", Leaks: leaks()}
	if err != nil {
		e.Error = err.Error()
	}
	tell(e)
}

// leaks returns the goroutines that the library has not ended. Those of client-go and controller-runtime may go on for a
// while, so that goleak, which finds all, is of no use here.
func leaks() (found string) {
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		buf := make([]byte, 1<<20)
		found = ""
		for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if len(found) > 16<<10 { // one line of output has to do
				break
			}
			if strings.Contains(stack, "go-redlock/redlock.") || strings.Contains(stack, "go-redlock/resourcelock.") {
				found += stack + "\n\n"
			}
		}
		if found == "" || time.Now().After(deadline) {
			return found
		}
	}
}

func (p plan) run(ctx context.Context) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1 // by default five requests a second, which would be what limits the work
	witness := redis.NewClient(&redis.Options{Addr: p.Witness})
	defer witness.Close()
	leases, closeLeases, err := p.leases()
	if err != nil {
		return err
	}
	defer closeLeases()

	mgr, lock, err := p.manager(cfg, leases)
	if err != nil {
		return err
	}
	t := &turn{id: p.ID, linger: p.Linger, witness: witness, began: make(chan struct{}), ended: make(chan struct{})}
	if lock != nil {
		t.epoch = lock.Epoch
	}
	if err := mgr.Add(t); err != nil {
		return err
	}
	if err := addWorker(mgr, t); err != nil {
		return err
	}
	err = mgr.Start(ctx)
	t.await() // a manager that lost its lease does not wait for its Runnables
	return err
}

func (p plan) manager(cfg *rest.Config, leases *redlock.Manager) (manager.Manager, *resourcelock.Lock, error) {
	opts := ctrl.Options{
		Logger:        klog.Background(),
		Cache:         cache.Options{DefaultNamespaces: map[string]cache.Config{p.Namespace: {}}},
		Metrics:       metricsserver.Options{BindAddress: "0"},
		LeaseDuration: &p.Durations.Lease,
		RenewDeadline: &p.Durations.Renew,
		RetryPeriod:   &p.Durations.Retry,
	}
	switch p.Lock {
	case byBoth:
		return leaseAndRedis(cfg, opts, leases, p.Namespace, p.Name)
	case byRedis:
		return redisOnly(cfg, opts, leases, p.Namespace, p.Name)
	default:
		mgr, err := leaseOnly(cfg, opts, p.Namespace, p.Name)
		return mgr, nil, err
	}
}

func (p plan) leases() (m *redlock.Manager, closeAll func(), err error) {
	if p.Lock == byLease {
		return nil, func() {}, nil
	}
	var nodes []redlock.Node
	var clients []*redis.Client
	for _, addr := range p.Redis {
		c := redis.NewClient(&redis.Options{Addr: addr})
		clients = append(clients, c)
		nodes = append(nodes, c)
	}
	m, err = redlock.New(nodes...)
	return m, func() {
		if m != nil {
			_ = m.Close()
		}
		for _, c := range clients {
			_ = c.Close()
		}
	}, err
}
