// Command controller is a controller-runtime manager whose leader election is a Redis lease. Without flags it shows, on
// an embedded Redis and with replicas as processes of their own, what happens to leadership when the leader is stopped
// and when it is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `A controller-runtime manager led by a Redis lease.

  go run ./examples/controller
      The demo: an embedded Redis and three replicas as processes. One leads; it is stopped gracefully, and another takes
      over; that one is killed, and the third takes over, each under a higher epoch; a write under an old epoch is refused.
      Exits with 0 if all of that happened, in under a minute.

  go run ./examples/controller --redis localhost:6379
  go run ./examples/controller --redis localhost:6381,localhost:6382,localhost:6383
      The same on a Redis of yours, or on three or more independent ones (Redlock, without epochs). The demo uses keys of
      its own and removes them. A password is taken from REDIS_PASSWORD.

  go run ./examples/controller --once=false
      Keeps the replicas running, and starts those again that end: kill the leader by hand and watch.

  controller --replica --redis redis:6379 --in-cluster
      One replica, as in a Deployment. With --kubeconfig, KUBECONFIG or --in-cluster its leader reconciles the ConfigMaps
      that are labelled ` + managedLabel + `=true: it stamps them with its epoch, and never lowers one.

Flags:
`

// options are the flags.
type options struct {
	redis         string
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
	probes        string
	verbose       bool
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("controller", flag.ContinueOnError)
	f.StringVar(&o.redis, "redis", "", "`addresses` of Redis, comma-separated: one, or an odd number of at least three independent ones (default: an embedded Redis)")
	f.BoolVar(&o.once, "once", true, "end when the demo has been shown")
	f.IntVar(&o.replicas, "replicas", 3, "how many replicas the demo starts; at least three with --once")
	f.BoolVar(&o.replica, "replica", false, "be one replica instead of the demo")
	f.StringVar(&o.identity, "identity", "", "`name` of this replica (default: hostname_uuid)")
	f.StringVar(&o.namespace, "namespace", "default", "namespace of the lease")
	f.StringVar(&o.name, "name", "example-controller", "name of the lease")
	f.DurationVar(&o.leaseDuration, "lease-duration", 3*time.Second, "TTL of the lease")
	f.DurationVar(&o.renewDeadline, "renew-deadline", 2*time.Second, "how long a leader tries to renew before it gives up")
	f.DurationVar(&o.retryPeriod, "retry-period", 500*time.Millisecond, "time between two renewals")
	f.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "`file` with the cluster whose ConfigMaps are reconciled (default: KUBECONFIG, or no cluster)")
	f.BoolVar(&o.inCluster, "in-cluster", false, "reconcile the ConfigMaps of the cluster that this runs in")
	f.StringVar(&o.probes, "health-probe-bind-address", "0", "`address` for /healthz and /readyz; 0: none")
	f.BoolVar(&o.verbose, "verbose", false, "show the logs of the replicas")
	f.Usage = func() { fmt.Fprint(f.Output(), usage); f.PrintDefaults() }
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: there are flags only", f.Arg(0))
	case !o.replica && o.once && o.replicas < 3:
		return o, fmt.Errorf("--replicas is %d: the demo stops one and kills one, and a third takes over", o.replicas)
	case !o.replica && o.replicas < 1:
		return o, fmt.Errorf("--replicas is %d: there must be somebody", o.replicas)
	case o.replica && o.redis == "":
		return o, errors.New("--redis is empty: a replica needs the Redis that the others use")
	}
	return o, nil
}

// addrs returns the Redis addresses.
func (o options) addrs() []string { return strings.Split(o.redis, ",") }

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.replica {
		err = runReplica(ctx, o)
	} else {
		err = runDemo(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		stop()
		os.Exit(1)
	}
}
