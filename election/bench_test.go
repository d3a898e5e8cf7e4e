package election_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/redis/go-redis/v9"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// process is a client and a Manager of its own on a real Redis.
type process struct {
	rdb *redis.Client
	m   *redlock.Manager
}

func newProcess(b *testing.B, addr string) *process {
	b.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	m, err := redlock.NewSingle(rdb)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = m.Close()
		_ = rdb.Close()
	})
	return &process{rdb, m}
}

// enter has p take part in n elections, and returns how to end that.
func (p *process) enter(b *testing.B, n int, started func()) (end func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range n {
		first := sync.OnceFunc(started)
		e, err := election.New(election.Config{
			Manager: p.m, Name: fmt.Sprint("shard-", i), ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { first(); <-ctx.Done() },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			b.Fatal(err)
		}
		running.Go(func() { _ = e.Run(ctx) })
	}
	return func() { cancel(); running.Wait() }
}

// BenchmarkElections has one process lead n elections and another follow them: what that takes to begin, to hand
// over, and to keep.
func BenchmarkElections(b *testing.B) {
	for _, n := range []int{1, 100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			server := redistest.Start(b)
			for b.Loop() {
				leaders, followers := newProcess(b, server.Addr()), newProcess(b, server.Addr())
				var led sync.WaitGroup
				led.Add(n)
				begin := time.Now()
				endLeaders := leaders.enter(b, n, led.Done)
				led.Wait()
				b.ReportMetric(float64(time.Since(begin).Milliseconds()), "ms-to-lead-all")
				leading := runtime.NumGoroutine()

				var handed sync.WaitGroup
				handed.Add(n)
				endFollowers := followers.enter(b, n, handed.Done)
				time.Sleep(5 * time.Second)
				b.ReportMetric(float64(runtime.NumGoroutine()-leading)/float64(n), "goroutines/follower")
				before := commands(b, server)
				time.Sleep(4 * time.Second)
				b.ReportMetric(float64(commands(b, server)-before)/4/float64(n), "commands/s/election")
				b.ReportMetric(float64(leaders.rdb.PoolStats().TotalConns+followers.rdb.PoolStats().TotalConns), "connections")

				begin = time.Now()
				endLeaders()
				handed.Wait()
				b.ReportMetric(float64(time.Since(begin).Milliseconds()), "ms-to-hand-over-all")
				endFollowers()
			}
		})
	}
}

// commands returns how many commands the server has executed, those inside scripts included.
func commands(b *testing.B, server *redistest.Server) (n int64) {
	b.Helper()
	info, err := server.Client().InfoMap(context.Background(), "stats").Result()
	if err != nil {
		b.Fatal(err)
	}
	_, _ = fmt.Sscan(info["Stats"]["total_commands_processed"], &n)
	return n
}

// contender is a candidate of either kind.
type contender struct {
	name string
	stop func() // hands over
	dies func() // loses its connections, and does nothing more
}

// starter starts a contender that calls started when it leads.
type starter func(b *testing.B, addr, name string, started func(name string)) contender

func startElector(b *testing.B, addr, name string, started func(string)) contender {
	p := newProcess(b, addr)
	e, err := election.New(election.Config{
		Manager: p.m, Name: "bench", Identity: name, ReleaseOnCancel: true,
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { started(name); <-ctx.Done() },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	return start(name, p, func(ctx context.Context) { _ = e.Run(ctx) })
}

func startClientGo(b *testing.B, addr, name string, started func(string)) contender {
	p := newProcess(b, addr)
	lock, err := resourcelock.New(resourcelock.Config{Manager: p.m, Name: "bench", Identity: name})
	if err != nil {
		b.Fatal(err)
	}
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: true,
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { started(name); <-ctx.Done() },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	return start(name, p, e.Run)
}

func start(name string, p *process, run func(context.Context)) contender {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	stop := func() { cancel(); <-done }
	return contender{name: name, stop: stop, dies: func() { _ = p.rdb.Close(); stop() }}
}

// BenchmarkGracefulHandover and BenchmarkCrashTakeover measure from the end of a leader to the start of the next,
// for an Elector and for client-go's LeaderElector over the same lease (3s, 2s, 1s).
func BenchmarkGracefulHandover(b *testing.B) {
	benchmark(b, func(c contender, _ *redistest.Server) time.Time {
		now := time.Now()
		c.stop()
		return now
	})
}

// A takeover is measured from the moment at which the lease that the dead leader left behind ends.
func BenchmarkCrashTakeover(b *testing.B) {
	benchmark(b, func(c contender, server *redistest.Server) time.Time {
		c.dies()
		ttl := server.Client().PTTL(context.Background(), "{/bench}:lease").Val()
		return time.Now().Add(ttl)
	})
}

func benchmark(b *testing.B, end func(contender, *redistest.Server) time.Time) {
	klog.SetLogger(logr.Discard()) // client-go's, which would hide the figures
	b.Cleanup(klog.ClearLogger)
	for name, starts := range map[string]starter{"Elector": startElector, "LeaderElector": startClientGo} {
		b.Run(name, func(b *testing.B) {
			server := redistest.Start(b)
			led := make(chan string, 1)
			leader := starts(b, server.Addr(), "0", func(name string) { led <- name })
			<-led
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				next := starts(b, server.Addr(), fmt.Sprint(i+1), func(name string) { led <- name })
				time.Sleep(300 * time.Millisecond) // it follows
				ended := end(leader, server)
				<-led
				took = append(took, time.Since(ended))
				leader = next
			}
			leader.stop()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms-max")
		})
	}
}
