package election

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// An Elector and client-go's LeaderElector compete for one lease and read each other's records.
func TestElectorAndLeaderElectorInOneElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		a := newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)

		m, err := redlock.NewSingle(bubble.NewLink(server).Client(t))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		lock, err := resourcelock.New(resourcelock.Config{Manager: m, Namespace: "ns", Name: "name", Identity: "b"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, ReleaseOnCancel: true,
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					h.add("b", "started", lock.Epoch())
					<-ctx.Done()
				},
				OnStoppedLeading: func() { h.add("b", "stopped", 0) },
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.Run(ctx)
		}()
		time.Sleep(time.Minute)
		if !a.IsLeader() || b.IsLeader() || b.GetLeader() != "a" {
			t.Fatalf("client-go believes that %q leads: %v", b.GetLeader(), h)
		}
		a.end()
		time.Sleep(5 * time.Second) // client-go asks every RetryPeriod and a little more
		if !b.IsLeader() || lock.Epoch() != 2 {
			t.Fatalf("client-go did not take over: %v", h)
		}
		a.run()
		time.Sleep(time.Minute)
		if id, epoch := a.Leader(); id != "b" || epoch != 2 || a.IsLeader() {
			t.Fatalf("the Elector believes that %q leads under %d: %v", id, epoch, h)
		}
		cancel()
		<-done
		time.Sleep(20 * time.Millisecond)
		if !a.IsLeader() || a.Epoch() != 3 {
			t.Fatalf("the Elector did not take over at once: %v", h)
		}
		checkTerms(t, h)
	})
}
