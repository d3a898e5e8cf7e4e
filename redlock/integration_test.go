package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// account is a resource that refuses the stale.
type account struct {
	balance   int
	lastFence uint64
}

func (a *account) deposit(amount int, fence uint64) error {
	if fence <= a.lastFence {
		return fmt.Errorf("token %d is stale", fence)
	}
	a.balance, a.lastFence = a.balance+amount, fence
	return nil
}

// TestIntegration is an application over one Redis, that of REDIS_ADDR where it is set.
func TestIntegration(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Single(t)})
	defer rdb.Close()
	manager, err := redlock.NewSingle(rdb, redlock.Config{
		Expiry:           2 * time.Second,
		Attempts:         3,
		RetryDelay:       20 * time.Millisecond,
		OperationTimeout: 500 * time.Millisecond,
	})
	must(t, err)
	defer manager.Close()

	ctx, id := t.Context(), "{"+redistest.Key(t)+"}"
	lock := manager.NewLock(id+":lock", redlock.WithAutoRenew(500*time.Millisecond), redlock.WithFencingToken(id+":fence"))
	var acc account
	for range 3 {
		must(t, lock.TryLock(ctx))
		must(t, acc.deposit(1, lock.FencingToken()))
		must(t, lock.Extend(ctx, 5*time.Second))
		select {
		case <-lock.Lost():
			t.Fatal(redlock.ErrLockLost)
		default:
		}
		must(t, lock.Unlock(context.Background()))
	}
	if acc.balance != 3 || acc.deposit(1, 1) == nil {
		t.Errorf("the account is %+v", acc)
	}
	contend(t, manager, id+":lock", rdb)
}

// TestIntegrationRedlock is one over independent servers, those of REDLOCK_REDIS_ADDRS where it is set.
func TestIntegrationRedlock(t *testing.T) {
	var nodes []redlock.Node
	for _, addr := range redistest.Redlock(t) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		nodes = append(nodes, rdb)
	}
	manager, err := redlock.NewRedlock(nodes, redlock.Config{
		Expiry:           2 * time.Second,
		Attempts:         3,
		RetryDelay:       20 * time.Millisecond,
		DriftFactor:      0.01,
		OperationTimeout: 500 * time.Millisecond,
	})
	must(t, err)
	defer manager.Close()

	key := redistest.Key(t)
	lock := manager.NewLock(key, redlock.WithAutoRenew(500*time.Millisecond))
	must(t, lock.TryLock(t.Context()))
	must(t, lock.Extend(t.Context(), 5*time.Second))
	must(t, lock.Unlock(context.Background()))
	wantIs(t, manager.NewLock(key, redlock.WithFencingToken("f")).TryLock(t.Context()), redlock.ErrFencingUnsupported)
	contend(t, manager, key, nodes[0].(*redis.Client))
}

// contend has ten locks count to fifty in Redis, by a read and a write that only the lease keeps apart.
func contend(t *testing.T, m *redlock.Manager, key string, rdb *redis.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	count, done := key+"-count", make(chan error, 10)
	defer rdb.Del(context.Background(), count)
	for range cap(done) {
		async(t, func() {
			var err error
			for range 5 {
				err = errors.Join(err, m.Do(ctx, key, func(ctx context.Context) error {
					n, err := rdb.Get(ctx, count).Int()
					if err != nil && !errors.Is(err, redis.Nil) {
						return err
					}
					return rdb.Set(ctx, count, n+1, time.Minute).Err()
				}))
			}
			done <- err
		})
	}
	for range cap(done) {
		must(t, <-done)
	}
	if n := rdb.Get(ctx, count).Val(); n != "50" {
		t.Errorf("ten times five is %s", n)
	}
}
