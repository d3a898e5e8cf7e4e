package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/redlock"
)

// demoTimeout bounds the whole story; a step that does not happen ends it.
const demoTimeout = 50 * time.Second

// demo is one telling of the story: every sentence of it is checked against what the replicas report.
type demo struct {
	options
	leases  *redlock.Manager
	clients []*redis.Client
	crew    *crew
	step    int
}

func runDemo(ctx context.Context, o options) error {
	if o.redis == "" {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true) // TTLs run by the clock, as in a real Redis
		if err := server.Start(); err != nil {
			return fmt.Errorf("starting the embedded Redis: %w", err)
		}
		defer server.Close()
		o.redis = server.Addr()
		fmt.Println("An embedded Redis listens on", o.redis)
	} else {
		fmt.Println("Redis:", o.redis)
	}
	o.name += "-" + strings.ToLower(rand.Text()[:8]) // runs on one Redis do not disturb each other

	d := &demo{options: o, clients: connect(o.addrs())}
	defer closeAll(d.clients)
	var err error
	if d.leases, err = newManager(d.clients); err != nil {
		return err
	}
	defer d.leases.Close()
	if err := d.ping(ctx); err != nil {
		return err
	}
	d.crew = newCrew(o)
	defer d.cleanUp()
	defer d.crew.killAll()
	if !o.once {
		return d.watch(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, demoTimeout)
	defer cancel()
	if err := d.tell(ctx); err != nil {
		return fmt.Errorf("step %d: %w", d.step, err)
	}
	fmt.Println("That is all.")
	return nil
}

// ping reports a Redis that is not there before anything is started.
func (d *demo) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for i, c := range d.clients {
		if err := c.Ping(ctx).Err(); err != nil {
			return fmt.Errorf("no Redis answers at %s: %w", d.addrs()[i], err)
		}
	}
	return nil
}

func (d *demo) say(format string, args ...any) {
	d.step++
	fmt.Printf("%2d. %s\n", d.step, fmt.Sprintf(format, args...))
}

// tell is the story.
func (d *demo) tell(ctx context.Context) error {
	d.say("%d replicas start, each a controller-runtime manager in a process of its own (%v mode, TTL %v).",
		d.replicas, d.leases.Mode(), d.leaseDuration)
	if err := d.crew.startAll(); err != nil {
		return err
	}
	first, err := d.crew.await(ctx, "leading", "")
	if err != nil {
		return err
	}
	d.say("%s leads%s.", first.Replica, d.under(first))
	if err := d.settle(ctx, first); err != nil {
		return err
	}

	second, err := d.handover(ctx, first)
	if err != nil {
		return err
	}
	if err := d.settle(ctx, second); err != nil {
		return err
	}
	third, err := d.takeover(ctx, second)
	if err != nil {
		return err
	}
	if err := d.checkEpochs(first, second, third); err != nil {
		return err
	}
	if err := d.staleWrite(ctx, first, third); err != nil {
		return err
	}
	d.say("The replicas that are left are stopped.")
	return d.crew.stopAll(ctx)
}

// settle gives the followers time to see who leads, and checks that nobody else does.
func (d *demo) settle(ctx context.Context, leader event) error {
	wait, cancel := context.WithTimeout(ctx, 3*d.retryPeriod)
	defer cancel()
	for {
		e, err := d.crew.await(wait, "leading", "")
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return nil // nothing happened: as it should be
		}
		return fmt.Errorf("%s leads as well as %s", e.Replica, leader.Replica)
	}
}

// handover stops the leader gracefully.
func (d *demo) handover(ctx context.Context, leader event) (event, error) {
	signalled := time.Now()
	if err := d.crew.signal(leader.Replica, syscall.SIGTERM); err != nil {
		return event{}, err
	}
	stopped, err := d.crew.await(ctx, "stopped", leader.Replica)
	if err != nil {
		return event{}, err
	}
	next, err := d.crew.await(ctx, "leading", "")
	if err != nil {
		return event{}, err
	}
	if next.At.Before(stopped.At) {
		return event{}, fmt.Errorf("%s began %v before %s had stopped", next.Replica, stopped.At.Sub(next.At), leader.Replica)
	}
	d.say("%s is asked to stop (SIGTERM): %s leads%s, %v after the signal, %v after the end of %s's work.",
		leader.Replica, next.Replica, d.under(next), round(next.At.Sub(signalled)), round(next.At.Sub(stopped.At)), leader.Replica)
	return next, nil
}

// takeover kills the leader.
func (d *demo) takeover(ctx context.Context, leader event) (event, error) {
	h, held, err := d.leases.Holder(ctx, "{"+d.namespace+"/"+d.name+"}:lease")
	if err != nil {
		return event{}, err
	}
	if !held {
		return event{}, errors.New("nobody holds the lease, though somebody leads")
	}
	killed := time.Now()
	if err := d.crew.signal(leader.Replica, syscall.SIGKILL); err != nil {
		return event{}, err
	}
	next, err := d.crew.await(ctx, "leading", "")
	if err != nil {
		return event{}, err
	}
	d.say("%s is killed (SIGKILL), with %v left of its lease: %s leads%s after %v.",
		leader.Replica, round(h.TTL), next.Replica, d.under(next), round(next.At.Sub(killed)))
	return next, nil
}

func (d *demo) checkEpochs(terms ...event) error {
	if d.leases.Mode() == redlock.ModeRedlock {
		d.say("Redlock leases have no epochs: independent nodes share no counter.")
		return nil
	}
	for i, t := range terms {
		if t.Epoch != uint64(i+1) {
			return fmt.Errorf("term %d has epoch %d", i+1, t.Epoch)
		}
	}
	return nil
}

// staleWrite writes as a leader of old would, that was paused and knows nothing of the others.
func (d *demo) staleWrite(ctx context.Context, old, current event) error {
	if current.Epoch == 0 {
		return nil
	}
	if _, err := d.crew.await(ctx, "worked", current.Replica); err != nil {
		return err
	}
	s := newStore(d.clients[0], d.namespace, d.name)
	err := s.write(ctx, old.Epoch, "a late write of the first leader")
	if !errors.Is(err, errStale) {
		return fmt.Errorf("the store accepted a write under epoch %d, or failed: %v", old.Epoch, err)
	}
	d.say("A late write under epoch %d is refused by the store, which has seen epoch %d.", old.Epoch, current.Epoch)
	return nil
}

// under says under which epoch somebody leads, where there are epochs.
func (d *demo) under(e event) string {
	if e.Epoch == 0 {
		return ""
	}
	return fmt.Sprintf(" under epoch %d", e.Epoch)
}

// watch keeps the replicas running until ctx ends.
func (d *demo) watch(ctx context.Context) error {
	if err := d.crew.startAll(); err != nil {
		return err
	}
	for _, name := range d.crew.names() {
		fmt.Printf("    %s is process %d\n", name, d.crew.pid(name))
	}
	for {
		e, err := d.crew.next(ctx)
		if err != nil {
			stop, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			return d.crew.stopAll(stop)
		}
		switch e.Event {
		case "leading":
			fmt.Printf("    %s  %s leads%s (kill -9 %d)\n", e.At.Format("15:04:05.000"), e.Replica, d.under(e), d.crew.pid(e.Replica))
		case "exited":
			fmt.Printf("    %s  %s ended: %s; it is started again\n", e.At.Format("15:04:05.000"), e.Replica, e.Detail)
			if err := sleep(ctx, time.Second); err == nil {
				if err := d.crew.start(e.Replica); err != nil {
					return err
				}
			}
		}
	}
}

// cleanUp removes the keys of this run.
func (d *demo) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	tag := "{" + d.namespace + "/" + d.name + "}"
	for _, c := range d.clients {
		if err := c.Del(ctx, tag+":lease", tag+":epoch", tag+":store").Err(); err != nil {
			fmt.Fprintln(os.Stderr, "controller: removing the keys of the demo:", err)
		}
	}
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
