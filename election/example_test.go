package election_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/redlock"
)

// newManager connects to a Redis for the examples; a program has one of its own.
func newManager() (m *redlock.Manager, end func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	m, err = redlock.NewSingle(rdb)
	if err != nil {
		panic(err)
	}
	return m, func() {
		_ = m.Close()
		_ = rdb.Close()
		server.Close()
	}
}

func Example() {
	manager, end := newManager()
	defer end()
	ctx, stop := context.WithCancel(context.Background())

	e, err := election.New(election.Config{
		Manager:   manager,
		Namespace: "payments",
		Name:      "settlement",
		Identity:  "replica-1",
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				epoch, _ := election.EpochFrom(ctx)
				fmt.Println("leading under epoch", epoch)
				stop() // as a signal would
				<-ctx.Done()
				fmt.Println("finishing:", errors.Is(context.Cause(ctx), election.ErrStopping))
			},
			OnStoppedLeading: func() { fmt.Println("stopped") },
		},
		ReleaseOnCancel: true,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("Run returned", e.Run(ctx))
	// Output:
	// leading under epoch 1
	// finishing: true
	// stopped
	// Run returned <nil>
}

func ExampleLead() {
	manager, end := newManager()
	defer end()

	cfg := election.Config{Manager: manager, Name: "migration"}
	for range 2 {
		err := election.Lead(context.Background(), cfg, func(ctx context.Context) error {
			epoch, _ := election.EpochFrom(ctx)
			fmt.Println("the only one, under epoch", epoch)
			return nil
		})
		fmt.Println("Lead returned", err)
	}
	// Output:
	// the only one, under epoch 1
	// Lead returned <nil>
	// the only one, under epoch 2
	// Lead returned <nil>
}

func ExampleWatch() {
	manager, end := newManager()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	leaders := election.Watch(ctx, manager, "payments", "settlement")
	fmt.Printf("leader: %q\n", (<-leaders).Identity)
	err := election.Lead(ctx, election.Config{
		Manager: manager, Namespace: "payments", Name: "settlement", Identity: "replica-1",
	}, func(ctx context.Context) error {
		l := <-leaders
		fmt.Printf("leader: %q under epoch %d\n", l.Identity, l.Epoch)
		return nil
	})
	fmt.Println(err)
	fmt.Printf("leader: %q\n", (<-leaders).Identity)
	// Output:
	// leader: ""
	// leader: "replica-1" under epoch 1
	// <nil>
	// leader: ""
}

func ExampleElector_StepDown() {
	manager, end := newManager()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	started := make(chan uint64)
	e, err := election.New(election.Config{
		Manager: manager, Name: "shard-7", RetryPeriod: 10 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				epoch, _ := election.EpochFrom(ctx)
				started <- epoch
				<-ctx.Done()
			},
			OnStoppedLeading: func() {},
		},
		ReleaseOnCancel: true,
	})
	if err != nil {
		panic(err)
	}
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()

	fmt.Println("epoch", <-started)
	fmt.Println(e.StepDown(ctx), e.IsLeader())
	fmt.Println("epoch", <-started) // nobody else was there
	stop()
	fmt.Println(<-done)
	// Output:
	// epoch 1
	// <nil> false
	// epoch 2
	// <nil>
}
