package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/redlock"
)

// host is what a machine with a scheduler would have: a client, leases, and jobs. The hosts of the demo share nothing
// but Redis and the database.
type host struct {
	name   string
	client *redis.Client
	leases *redlock.Manager
	stops  []func() error // in order
}

func (d *demo) newHost(name string) (*host, error) {
	h := &host{name: name, client: redis.NewClient(d.redis)}
	var err error
	h.leases, err = redlock.NewSingle(h.client)
	return h, err
}

// stop ends the host in good order.
func (h *host) stop() error {
	var errs []error
	for _, stop := range h.stops {
		errs = append(errs, stop())
	}
	h.stops = nil
	return errors.Join(append(errs, h.leases.Close(), h.client.Close())...)
}

// schedule starts a scheduler that runs the task as a job of that name. Schedulers of different hosts tick at the same
// moments, as far as their clocks agree.
func (h *host) schedule(name string, every time.Duration, task any, option gocron.SchedulerOption) error {
	s, err := gocron.NewScheduler(option)
	if err != nil {
		return err
	}
	first := time.Now().Truncate(every).Add(2 * every)
	_, err = s.NewJob(gocron.DurationJob(every), gocron.NewTask(task), gocron.WithName(name),
		gocron.WithStartAt(gocron.WithStartDateTime(first)), gocron.WithSingletonMode(gocron.LimitModeReschedule))
	if err != nil {
		return errors.Join(err, s.Shutdown())
	}
	s.Start()
	h.stops = append(h.stops, s.Shutdown)
	return nil
}

// elect starts a candidate for the election of that name.
func (h *host) elect(cfg election.Config) (*Elector, error) {
	cfg.Manager, cfg.Identity = h.leases, h.name
	e, err := NewElector(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	h.stops = append(h.stops, func() error {
		cancel()
		return <-ended
	})
	return e, nil
}
