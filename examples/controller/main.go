// Command controller is a controller-runtime manager whose leader election is a Redis lease. Without flags it shows, on
// an embedded Redis and with replicas as processes of their own, what happens to leadership when the leader is stopped
// and when it is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ndyakov/go-redlock/examples/controller/fenced"
)

const usage = `A controller-runtime manager led by a Redis lease.

  go run ./examples/controller
      The demo: an embedded Redis and three replicas as processes. One leads; it is stopped gracefully, and another takes
      over; that one is killed, and the third takes over, each under a higher epoch; a write under an old epoch is refused.
      Exits with 0 if all of that happened, in under a minute.

  go run ./examples/controller --redis localhost:6379
  go run ./examples/controller --redis localhost:6381,localhost:6382,localhost:6383
      The same on a Redis of yours, or on three or more independent ones (Redlock). The demo uses keys of its own
      and removes them. REDIS_USERNAME and REDIS_PASSWORD are the credentials, if any are needed.

  go run ./examples/controller --once=false
      Keeps the replicas running, and starts those again that end: kill the leader by hand and watch.

  controller --replica --redis redis:6379 --in-cluster
      One replica, as in a Deployment. With --kubeconfig, KUBECONFIG or --in-cluster its leader reconciles the ConfigMaps
      that are labelled ` + managedLabel + `=true: it stamps them with its epoch, as the annotation
      ` + fenced.EpochAnnotation + `. The manifests in deploy/ have the API server refuse a lower one.

Flags:
`

// options are the flags.
type options struct {
	redis         string
	redisTLS      bool
	once          bool
	replicas      int
	replica       bool
	identity      string
	namespace     string
	name          string
	leaseDuration time.Duration
	renewDeadline time.Duration
	retryPeriod   time.Duration
	kubeconfig    string
	inCluster     bool
	watch         string
	probes        string
	metrics       string
	shutdown      time.Duration
	verbose       bool
}

func parse(args []string, help io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("controller", flag.ContinueOnError)
	f.StringVar(&o.redis, "redis", "", "`addresses` of Redis, comma-separated: one, or an odd number of at least three independent ones (default: an embedded Redis)")
	f.BoolVar(&o.redisTLS, "redis-tls", false, "connect to Redis with TLS")
	f.BoolVar(&o.once, "once", true, "end when the demo has been shown")
	f.IntVar(&o.replicas, "replicas", 3, "how many replicas the demo starts; at least three with --once")
	f.BoolVar(&o.replica, "replica", false, "be one replica instead of the demo")
	f.StringVar(&o.identity, "identity", "", "`name` of this replica (default: hostname_uuid)")
	f.StringVar(&o.namespace, "namespace", "default", "`namespace` of the lease")
	f.StringVar(&o.name, "name", "example-controller", "`name` of the lease; the demo adds some random letters")
	f.DurationVar(&o.leaseDuration, "lease-duration", 3*time.Second, "TTL of the lease: how long a dead leader is waited for")
	f.DurationVar(&o.renewDeadline, "renew-deadline", 2*time.Second, "how long a leader tries to renew before it gives up")
	f.DurationVar(&o.retryPeriod, "retry-period", 500*time.Millisecond, "time between two renewals")
	f.DurationVar(&o.shutdown, "shutdown-timeout", 20*time.Second, "how long the work of a replica may take to end; then it exits without a release, and the lease runs out")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the cluster whose ConfigMaps are reconciled (default: none; with --replica the variable KUBECONFIG)")
	f.BoolVar(&o.inCluster, "in-cluster", false, "with --replica: reconcile the ConfigMaps of the cluster that this runs in")
	f.StringVar(&o.watch, "watch-namespace", "", "`namespace` of these ConfigMaps (default: all)")
	f.StringVar(&o.probes, "health-probe-bind-address", "0", "with --replica: `address` for /healthz and /readyz; 0: none")
	f.StringVar(&o.metrics, "metrics-bind-address", "0", "with --replica: `address` for /metrics; 0: none")
	f.BoolVar(&o.verbose, "verbose", false, "log details; the demo shows the logs of the replicas")
	f.SetOutput(io.Discard)
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(help, usage)
		f.SetOutput(help)
		f.PrintDefaults()
	}
	if err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: there are flags only", f.Arg(0))
	}
	return o, o.check()
}

func (o options) check() error {
	switch {
	case !o.replica && o.once && o.replicas < 3:
		return fmt.Errorf("--replicas is %d: the demo stops one and kills one, and a third takes over", o.replicas)
	case !o.replica && o.replicas < 1:
		return fmt.Errorf("--replicas is %d: there must be somebody", o.replicas)
	case !o.replica && (o.inCluster || o.probes != "0" || o.metrics != "0"):
		return errors.New("--in-cluster, --health-probe-bind-address and --metrics-bind-address need --replica")
	case o.replica && o.redis == "":
		return errors.New("--redis is empty: a replica needs the Redis that the others use")
	case o.redisTLS && o.redis == "":
		return errors.New("--redis-tls needs --redis: the embedded Redis has no TLS")
	case slices.Contains(o.addrs(), "") && o.redis != "":
		return fmt.Errorf("--redis is %q: an address is empty", o.redis)
	case o.retryPeriod <= 0 || o.renewDeadline <= o.retryPeriod*6/5 || o.leaseDuration <= o.renewDeadline:
		return fmt.Errorf("--lease-duration is %v, --renew-deadline %v and --retry-period %v: each must be longer than the next, "+
			"the second by more than a fifth", o.leaseDuration, o.renewDeadline, o.retryPeriod)
	case o.shutdown <= 0:
		return fmt.Errorf("--shutdown-timeout is %v: work needs some time to end", o.shutdown)
	}
	return nil
}

// addrs returns the Redis addresses.
func (o options) addrs() []string {
	addrs := strings.Split(o.redis, ",")
	for i := range addrs {
		addrs[i] = strings.TrimSpace(addrs[i])
	}
	return addrs
}

func main() {
	o, err := parse(os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err, "(see --help)")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals()...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	setLoggers(o)
	if o.replica {
		err = runReplica(ctx, o)
	} else {
		err = runDemo(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

// stopSignals are what asks this process to end. Ctrl-C in a terminal reaches the demo's replicas as well, but when
// they end is up to the demo.
func stopSignals() []os.Signal {
	if os.Getenv(fromDemo) != "" {
		signal.Ignore(os.Interrupt)
		return []os.Signal{syscall.SIGTERM}
	}
	return []os.Signal{os.Interrupt, syscall.SIGTERM}
}
