package resourcelock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/internal/process"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// addrVariable has the test binary be a leader, over the Redis at this address.
const addrVariable = "RESOURCELOCK_TEST_REDIS"

const stopLease = 2 * time.Second

// leaderProcess leads until it is killed. It prints "started" with the epoch, "cancelled" when the
// work's context is, and after having stood still "resumed" with the epoch that it finds at its first look.
func leaderProcess(addr string) {
	m, err := redlock.NewSingle(redis.NewClient(&redis.Options{Addr: addr}))
	if err != nil {
		panic(err)
	}
	lock, err := resourcelock.New(resourcelock.Config{Manager: m, Namespace: "ns", Name: "stop"})
	if err != nil {
		panic(err)
	}
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: stopLease, RenewDeadline: stopLease * 2 / 3, RetryPeriod: stopLease / 8,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				fmt.Println("started", lock.Epoch())
				<-ctx.Done()
				fmt.Println("cancelled")
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		panic(err)
	}
	ctx, _ := lock.Context(context.Background())
	go le.Run(ctx)
	go func() {
		for last := time.Now(); ; last = time.Now() {
			time.Sleep(time.Millisecond)
			if time.Since(last) > stopLease/2 {
				fmt.Println("resumed", lock.Epoch())
			}
		}
	}()
	select {}
}

// A leader's process is stopped for two LeaseDurations: another leads under a higher epoch, and the first one knows at
// its first look that it does not, and cancels its work.
func TestAStoppedLeaderKnowsAtItsFirstLook(t *testing.T) {
	addr := redistest.Start(t).Addr()
	child, lines := process.StartSelf(t, addrVariable+"="+addr)
	await := func(want string) {
		t.Helper()
		for lines.Scan() {
			if line := lines.Text(); line == want {
				return
			} else if strings.HasPrefix(line, strings.Fields(want)[0]) {
				t.Fatalf("it says %q, want %q", line, want)
			}
		}
		t.Fatalf("it never said %q", want)
	}

	await("started 1")
	if err := child.Stop(); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	next := newLock(t, realManager(t, addr), "stop", "next")
	for next.Create(t.Context(), recordOf(next, time.Minute)) != nil {
		if time.Since(stopped) > 2*stopLease {
			t.Fatal("nobody else can lead")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if e := next.Epoch(); e != 2 {
		t.Errorf("the next epoch is %d", e)
	}
	time.Sleep(2*stopLease - time.Since(stopped))
	if err := child.Continue(); err != nil {
		t.Fatal(err)
	}
	resumed, cancelled := false, false
	for !resumed || !cancelled {
		if !lines.Scan() {
			t.Fatalf("resumed: %v, cancelled: %v", resumed, cancelled)
		}
		switch line := lines.Text(); line {
		case "resumed 0":
			resumed = true
		case "cancelled":
			cancelled = true
		default:
			t.Fatalf("it says %q", line)
		}
	}
	if !strings.Contains(get(t, next).HolderIdentity, "next") {
		t.Errorf("the lease is %q's", get(t, next).HolderIdentity)
	}
}
