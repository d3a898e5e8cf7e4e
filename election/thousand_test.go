package election

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

const leaseDuration = 6 * time.Second

// shard is one election of many, with two candidates in this process.
type shard struct {
	candidates [2]*Elector
	leading    atomic.Int32
	overlaps   atomic.Int32 // times that both led
}

func newShard(t *testing.T, i int, managers [2]*redlock.Manager) *shard {
	t.Helper()
	s := new(shard)
	for p, m := range managers {
		e, err := New(Config{
			Manager: m, Name: fmt.Sprint("shard-", i), ReleaseOnCancel: true,
			LeaseDuration: leaseDuration, RenewDeadline: 4 * time.Second, RetryPeriod: time.Second,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					if s.leading.Add(1) > 1 {
						s.overlaps.Add(1)
					}
					<-ctx.Done()
					s.leading.Add(-1)
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.candidates[p] = e
	}
	return s
}

// epoch returns the epoch under which one of the candidates leads, 0 when none does.
func (s *shard) epoch() uint64 { return max(s.candidates[0].Epoch(), s.candidates[1].Epoch()) }

// A process with a thousand candidates loses its Redis, which comes back with its data, and then without.
func TestAThousandElectorsSurviveARestartOfRedis(t *testing.T) {
	const shards = 500
	server := redistest.Start(t, redistest.WithAOF())
	var clients [2]*redis.Client
	var managers [2]*redlock.Manager
	for p := range managers {
		clients[p] = connect(t, server.Addr())
		m, err := redlock.NewSingle(clients[p])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		managers[p] = m
	}
	before := runtime.NumGoroutine()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	all := make([]*shard, shards)
	for i := range all {
		all[i] = newShard(t, i, managers)
		for _, e := range all[i].candidates {
			running.Go(func() { _ = e.Run(ctx) })
		}
	}
	awaitAll(t, all, "led", func(s *shard) bool { return s.leading.Load() == 1 && s.knownTo(1) })

	server.Restart()
	begin := time.Now()
	awaitAll(t, all, "led again", func(s *shard) bool { return s.leading.Load() == 1 && s.epoch() > 0 })
	time.Sleep(time.Until(begin.Add(leaseDuration))) // nobody who was there before can have lost it unnoticed
	for i, s := range all {
		if n := s.overlaps.Load(); n > 0 {
			t.Errorf("shard %d had two leaders %d times", i, n)
		}
	}

	server.RestartEmpty()
	begin = time.Now()
	// The counters are gone, and the candidates remember.
	awaitAll(t, all, "led by one, under a higher epoch", func(s *shard) bool { return s.leading.Load() == 1 && s.epoch() > 1 })
	if d := time.Since(begin); d > leaseDuration {
		t.Errorf("all were led again after %v, want it within LeaseDuration", d)
	}
	for p, c := range clients {
		if n := c.PoolStats().TotalConns; n > 32 {
			t.Errorf("process %d has %d connections", p, n)
		}
	}

	stop()
	running.Wait()
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before+20; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}

// knownTo reports whether both candidates know of a term under the epoch.
func (s *shard) knownTo(epoch uint64) bool {
	for _, e := range s.candidates {
		if _, seen := e.Leader(); seen < epoch {
			return false
		}
	}
	return true
}

func awaitAll(t *testing.T, all []*shard, what string, ok func(*shard) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		n := 0
		for _, s := range all {
			if ok(s) {
				n++
			}
		}
		if n == len(all) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute %d of %d shards are %s", n, len(all), what)
		}
	}
}
