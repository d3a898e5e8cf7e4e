package redlock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

func benchSingle(b *testing.B) *redlock.Manager {
	return manager(b, []redlock.Node{dial(b, redistest.Single(b))}, redlock.Config{})
}

func benchRedlock(b *testing.B) *redlock.Manager {
	var nodes []redlock.Node
	for _, addr := range redistest.Redlock(b) {
		nodes = append(nodes, dial(b, addr))
	}
	return manager(b, nodes, redlock.Config{})
}

func benchAcquire(b *testing.B, l *redlock.Lock) {
	for b.Loop() {
		must(b, l.TryLock(b.Context()))
		must(b, l.Unlock(b.Context()))
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	b.Run("single", func(b *testing.B) { benchAcquire(b, benchSingle(b).NewLock(redistest.Key(b))) })
	b.Run("fenced", func(b *testing.B) {
		key := "{" + redistest.Key(b) + "}"
		benchAcquire(b, benchSingle(b).NewLock(key, redlock.WithFencingToken(key+":fence")))
	})
	b.Run("redlock", func(b *testing.B) { benchAcquire(b, benchRedlock(b).NewLock(redistest.Key(b))) })
	b.Run("redlock fenced", func(b *testing.B) {
		benchAcquire(b, benchRedlock(b).NewLock(redistest.Key(b), redlock.WithQuorumFencing(redistest.Key(b))))
	})
}

// The round trip that every acquisition needs at least.
func BenchmarkPing(b *testing.B) {
	c := redis.NewClient(&redis.Options{Addr: redistest.Single(b)})
	defer c.Close()
	for b.Loop() {
		must(b, c.Ping(b.Context()).Err())
	}
}

func BenchmarkExtend(b *testing.B) {
	for name, m := range map[string]func(*testing.B) *redlock.Manager{"single": benchSingle, "redlock": benchRedlock} {
		b.Run(name, func(b *testing.B) {
			l := m(b).NewLock(redistest.Key(b))
			must(b, l.TryLock(b.Context()))
			for b.Loop() {
				must(b, l.Extend(b.Context(), time.Minute))
			}
			must(b, l.Unlock(b.Context()))
		})
	}
}

func BenchmarkHandover(b *testing.B) {
	for name, m := range map[string]func(*testing.B) *redlock.Manager{"single": benchSingle, "redlock": benchRedlock} {
		b.Run(name, func(b *testing.B) {
			m := m(b)
			key := redistest.Key(b)
			holder, waiter := m.NewLock(key), m.NewLock(key)
			must(b, holder.TryLock(b.Context()))
			for b.Loop() {
				b.StopTimer()
				got := make(chan error)
				go func() { got <- waiter.Lock(b.Context()) }()
				time.Sleep(5 * time.Millisecond)
				b.StartTimer()
				must(b, holder.Unlock(b.Context()))
				must(b, <-got)
				holder, waiter = waiter, holder
			}
			must(b, holder.Unlock(b.Context()))
		})
	}
}

func BenchmarkHeld(b *testing.B) {
	l := benchSingle(b).NewLock(redistest.Key(b))
	must(b, l.TryLock(b.Context()))
	b.ReportAllocs()
	for b.Loop() {
		if !l.Held() {
			b.Fatal("lost")
		}
	}
	must(b, l.Unlock(b.Context()))
}
