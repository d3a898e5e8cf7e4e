package election

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/internal/process"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// addrVariable has the test binary be a candidate, over the Redis at this address.
const addrVariable = "ELECTION_TEST_REDIS"

func connect(t testing.TB, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func quick(c *Config) {
	c.Namespace, c.Name, c.ReleaseOnCancel = "ns", "name", true
	c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = 500*time.Millisecond, 300*time.Millisecond, 100*time.Millisecond
}

// candidateProcess leads until it is killed. It prints "started" with the epoch, "ended" when the
// context of its work has, and every few milliseconds "look", the time, and what IsLeader then said.
func candidateProcess(addr string) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	m, err := redlock.NewSingle(rdb)
	if err != nil {
		panic(err)
	}
	cfg := Config{Manager: m, Callbacks: leaderelection.LeaderCallbacks{
		OnStartedLeading: func(ctx context.Context) {
			epoch, _ := EpochFrom(ctx)
			fmt.Println("started", epoch)
			<-ctx.Done()
			fmt.Println("ended", epoch)
		},
		OnStoppedLeading: func() {},
	}}
	quick(&cfg)
	e, err := New(cfg)
	if err != nil {
		panic(err)
	}
	go func() { _ = e.Run(context.Background()) }()
	go func() {
		for {
			at := time.Now().UnixNano()
			fmt.Println("look", at, e.IsLeader())
			time.Sleep(2 * time.Millisecond)
		}
	}()
	select {}
}

func TestStoppedProcessSeesTheTruthAtItsFirstLook(t *testing.T) {
	addr := redistest.Start(t).Addr()
	child, lines := process.StartSelf(t, addrVariable+"="+addr)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "started") {
	}
	if lines.Text() != "started 1" {
		t.Fatalf("the candidate says %q", lines.Text())
	}

	m, err := redlock.NewSingle(connect(t, addr))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	led := make(chan uint64, 10)
	cfg := Config{Manager: m, Callbacks: leaderelection.LeaderCallbacks{
		OnStartedLeading: func(ctx context.Context) {
			epoch, _ := EpochFrom(ctx)
			led <- epoch
		},
		OnStoppedLeading: func() {},
	}}
	quick(&cfg)
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	defer func() { cancel(); <-done }()

	if err := child.Stop(); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	if epoch := <-led; epoch != 2 {
		t.Errorf("the next leader's epoch is %d, want 2", epoch)
	}
	if d := time.Since(stopped); d > 600*time.Millisecond {
		t.Errorf("the takeover took %v", d)
	}
	time.Sleep(time.Until(stopped.Add(2 * cfg.LeaseDuration)))
	continued := time.Now().UnixNano()
	if err := child.Continue(); err != nil {
		t.Fatal(err)
	}
	for looked, ended := false, false; !looked || !ended; {
		if !lines.Scan() {
			t.Fatalf("the candidate has ended; it looked: %v, its term ended: %v", looked, ended)
		}
		switch fields := strings.Fields(lines.Text()); fields[0] {
		case "ended":
			ended = true
		case "look":
			if at, _ := strconv.ParseInt(fields[1], 10, 64); at < continued || looked {
				continue
			}
			looked = true
			if fields[2] != "false" {
				t.Error("its first look after that says that it still leads")
			}
		}
	}
	if !e.IsLeader() {
		t.Error("the new leader was disturbed")
	}
}
