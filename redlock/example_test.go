package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/redlock"
)

// startRedis starts what stands for a Redis in the examples, and returns a client of it.
func startRedis() (rdb *redis.Client, stop func()) {
	s := miniredis.NewMiniRedis()
	if err := s.Start(); err != nil {
		log.Fatal(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: s.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		s.Close()
	}
}

// One Redis, and a fencing token by which the protected resource can tell the stale from the current.
func ExampleNewSingle() {
	rdb, stop := startRedis()
	defer stop()
	ctx := context.Background()

	manager, err := redlock.NewSingle(rdb, redlock.Config{Expiry: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	lock := manager.NewLock("orders:{42}:lock",
		redlock.WithAutoRenew(3*time.Second),
		redlock.WithFencingToken("orders:{42}:fence"))

	for range 2 {
		if err := lock.TryLock(ctx); err != nil {
			log.Fatal(err)
		}
		fmt.Println("update order 42 under token", lock.FencingToken())
		if err := lock.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// update order 42 under token 1
	// update order 42 under token 2
}

// Three primaries that fail independently: the lease is held by whoever has a majority of them.
func ExampleNewRedlock() {
	var nodes []redlock.Node
	for range 3 {
		rdb, stop := startRedis()
		defer stop()
		nodes = append(nodes, rdb)
	}
	ctx := context.Background()

	manager, err := redlock.NewRedlock(nodes, redlock.Config{Attempts: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	ours, theirs := manager.NewLock("orders:42"), manager.NewLock("orders:42")
	if err := ours.TryLock(ctx); err != nil {
		log.Fatal(err)
	}
	defer ours.Unlock(ctx)

	err = theirs.TryLock(ctx)
	fmt.Println("quorum:", manager.Quorum(), "of", len(nodes))
	fmt.Println("somebody else has it:", errors.Is(err, redlock.ErrNotAcquired))
	// Output:
	// quorum: 2 of 3
	// somebody else has it: true
}

// Do waits for the lease, renews it while the function runs, and releases it.
func ExampleManager_Do() {
	rdb, stop := startRedis()
	defer stop()
	manager, err := redlock.NewSingle(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()

	err = manager.Do(context.Background(), "{report}:lock", func(ctx context.Context) error {
		token, _ := redlock.FencingTokenFrom(ctx)
		fmt.Println("writing the report under token", token)
		return ctx.Err() // context.Cause(ctx) is ErrLockLost when the lease is lost
	}, redlock.WithFencingToken("{report}:fence"))
	fmt.Println(err)
	// Output:
	// writing the report under token 1
	// <nil>
}

// Lock waits for its turn: until the holder releases the lease, or its TTL is over.
func ExampleLock_Lock() {
	rdb, stop := startRedis()
	defer stop()
	manager, err := redlock.NewSingle(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	first, second := manager.NewLock("queue"), manager.NewLock("queue")
	if err := first.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		fmt.Println("first is done")
		_ = first.Unlock(ctx)
	}()
	if err := second.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("second has it")
	_ = second.Unlock(ctx)
	// Output:
	// first is done
	// second has it
}

// Work that selects hears of the loss from a channel.
func ExampleLock_Lost() {
	rdb, stop := startRedis()
	defer stop()
	manager, err := redlock.NewSingle(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	ctx := context.Background()

	lock := manager.NewLock("job", redlock.WithAutoRenew(10*time.Millisecond))
	if err := lock.TryLock(ctx); err != nil {
		log.Fatal(err)
	}
	rdb.Del(ctx, "job") // by an administrator
	select {
	case <-lock.Lost():
		fmt.Println("stop:", errors.Is(lock.Unlock(ctx), redlock.ErrLockLost))
	case <-time.After(5 * time.Second):
		fmt.Println("done")
	}
	// Output:
	// stop: true
}

// Work that takes a context is given one that ends with the lease.
func ExampleLock_Context() {
	rdb, stop := startRedis()
	defer stop()
	manager, err := redlock.NewSingle(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()

	lock := manager.NewLock("job", redlock.WithExpiry(50*time.Millisecond)) // and no renewal
	if err := lock.TryLock(context.Background()); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := lock.Context(context.Background())
	defer cancel()

	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	// Output:
	// lease lost
}
