package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/ndyakov/go-redlock/redlock"
)

// demo is one telling of the story: every sentence of it is checked against what the replicas report.
type demo struct {
	options
	redis *servers
	store *store // nil with Redlock
	crew  *crew
	began time.Time
	step  int
}

func runDemo(ctx context.Context, o options) (err error) {
	interrupted := ctx
	where := o.redis
	if o.redis == "" {
		server, err := startEmbedded()
		if err != nil {
			return err
		}
		defer server.Close()
		o.redis, where = server.Addr(), "embedded in this process, "+server.Addr()
	}
	o.name += "-" + strings.ToLower(rand.Text()[:8]) // runs on one Redis do not disturb each other

	d := &demo{options: o, began: time.Now()}
	if d.redis, err = connect(o); err != nil {
		return err
	}
	defer d.redis.close()
	if err := d.redis.ping(ctx); err != nil {
		return err
	}
	d.store = d.redis.store(o)
	fmt.Printf("Redis: %s (%s). The lease is %s/%s, with a TTL of %v, renewed every %v.\n\n",
		where, d.redis.mode(), o.namespace, o.name, o.leaseDuration, o.retryPeriod)
	d.crew = newCrew(o)
	defer d.cleanUp()
	defer d.crew.killAll()
	if !o.once {
		return d.watch(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second+3*o.leaseDuration)
	defer cancel()
	if err := d.tell(ctx); err != nil {
		if interrupted.Err() != nil {
			return errors.New("interrupted")
		}
		return fmt.Errorf("step %d: %w", d.step, err)
	}
	fmt.Printf("\nAll of it happened as it should, in %.1fs.\n", time.Since(d.began).Seconds())
	return nil
}

// say begins a step of the story; add goes on with it.
func (d *demo) say(format string, args ...any) {
	d.step++
	fmt.Printf("%2d. %4.1fs  %s\n", d.step, time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) add(format string, args ...any) {
	fmt.Printf("    %4.1fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// tell is the story.
func (d *demo) tell(ctx context.Context) error {
	first, err := d.start(ctx)
	if err != nil {
		return err
	}
	second, err := d.handover(ctx, first)
	if err != nil {
		return err
	}
	third, err := d.takeover(ctx, second)
	if err != nil {
		return err
	}
	if err := d.staleWrite(ctx, first, third); err != nil {
		return err
	}
	d.say("%s is stopped, and the keys of this run are removed.", third.replica)
	if err := d.crew.stopAll(ctx); err != nil {
		return err
	}
	return d.removeKeys()
}

// start starts the replicas, one of which must come to lead.
func (d *demo) start(ctx context.Context) (*term, error) {
	d.say("%d replicas start: each is a controller-runtime manager in a process of its own.", d.replicas)
	if err := d.crew.startAll(); err != nil {
		return nil, err
	}
	d.add("%s", d.crew.pids())
	h := &d.crew.history
	err := d.crew.await(ctx, "all replicas run and one leads", func() bool {
		return len(h.up) == d.replicas && len(h.terms) > 0
	})
	if err != nil {
		return nil, err
	}
	return h.terms[0], d.leads(ctx, h.terms[0], "")
}

// leads tells who leads now, once it has worked a few times; everybody else must wait meanwhile.
func (d *demo) leads(ctx context.Context, t *term, after string) error {
	h := &d.crew.history
	d.add("%s leads under epoch %d%s.", t.replica, t.epoch, after)
	terms, pieces := len(h.terms), t.pieces+3
	if err := d.crew.await(ctx, t.replica+" does its work", func() bool { return t.pieces >= pieces }); err != nil {
		return err
	}
	if n := len(h.terms); n != terms {
		return fmt.Errorf("%s leads as well as %s", h.terms[n-1].replica, t.replica)
	}
	if err := h.check(d.store != nil); err != nil {
		return err
	}
	return d.askRedis(ctx, t)
}

// askRedis compares what Redis says of the lease with what the replicas report.
func (d *demo) askRedis(ctx context.Context, t *term) error {
	h, held, err := d.redis.leases.Holder(ctx, d.key("lease"))
	if err != nil {
		return err
	}
	var record struct {
		HolderIdentity string `json:"holderIdentity"`
	}
	if err := json.Unmarshal([]byte(h.Metadata), &record); held && err != nil {
		return fmt.Errorf("the lease bears the record %q: %w", h.Metadata, err)
	}
	if !held || record.HolderIdentity != t.replica || h.FencingToken != t.epoch {
		return fmt.Errorf("%s leads under epoch %d, but to Redis %q holds the lease under epoch %d (held: %v)",
			t.replica, t.epoch, record.HolderIdentity, h.FencingToken, held)
	}
	return nil
}

// handover stops the leader gracefully.
func (d *demo) handover(ctx context.Context, leader *term) (*term, error) {
	d.say("%s is asked to stop (SIGTERM): it ends its work, and then releases the lease.", leader.replica)
	signalled := time.Now()
	if err := d.crew.signal(leader.replica, syscall.SIGTERM); err != nil {
		return nil, err
	}
	next, err := d.successor(ctx, leader)
	if err != nil {
		return nil, err
	}
	if e := d.crew.history.gone[leader.replica]; e.Detail != "exit status 0" {
		return nil, fmt.Errorf("%s did not end well: %s; its log ends with:\n%s", leader.replica, e.Detail, d.crew.logOf(leader.replica))
	}
	// A release that did not work shows in the time: the lease, renewed until then, would have to run out.
	took := next.began.Sub(leader.ended)
	if took > d.leaseDuration/2 {
		return nil, fmt.Errorf("%s began %v after %s had ended: the lease was not released", next.replica, took, leader.replica)
	}
	return next, d.leads(ctx, next, fmt.Sprintf(", %v after the signal, %v after the end of %s's work",
		round(next.began.Sub(signalled)), round(took), leader.replica))
}

// takeover kills the leader.
func (d *demo) takeover(ctx context.Context, leader *term) (*term, error) {
	d.say("%s is killed (SIGKILL): it can release nothing.", leader.replica)
	killed := time.Now()
	if err := d.crew.signal(leader.replica, syscall.SIGKILL); err != nil {
		return nil, err
	}
	<-d.crew.gone(leader.replica)
	asked := time.Now()
	h, held, err := d.redis.leases.Holder(ctx, d.key("lease"))
	if err != nil {
		return nil, err
	}
	if !held {
		return nil, errors.New("the lease is gone with the leader; it should run out")
	}
	d.add("Its lease has %v left, until when nobody else may lead.", round(h.TTL))
	next, err := d.successor(ctx, leader)
	if err != nil {
		return nil, err
	}
	if early := asked.Add(h.TTL).Sub(next.began); early > clockTolerance {
		return nil, fmt.Errorf("%s began to lead %v before the lease of %s had run out", next.replica, early, leader.replica)
	}
	return next, d.leads(ctx, next, fmt.Sprintf(", %v after the kill", round(next.began.Sub(killed))))
}

// clockTolerance is for times taken by different processes.
const clockTolerance = 20 * time.Millisecond

// successor awaits the end of a leader and the beginning of the next.
func (d *demo) successor(ctx context.Context, leader *term) (*term, error) {
	h := &d.crew.history
	terms := len(h.terms)
	err := d.crew.await(ctx, leader.replica+" ends and another replica leads", func() bool {
		_, gone := h.gone[leader.replica]
		return gone && !leader.ended.IsZero() && len(h.terms) > terms
	})
	if err != nil {
		return nil, err
	}
	return h.terms[terms], h.check(d.store != nil)
}

// staleWrite writes as a leader of old would, that was paused and knows nothing of the others.
func (d *demo) staleWrite(ctx context.Context, old, current *term) error {
	if d.store == nil {
		d.say("Left out: the write under an old epoch. The demo's store is on the one Redis that elects, and here are %d.", len(d.redis.clients))
		return nil
	}
	d.say("A write of %s arrives late, still under epoch %d.", old.replica, old.epoch)
	err := d.store.write(ctx, old.epoch, "a late write of "+old.replica)
	if !errors.Is(err, errStale) {
		return fmt.Errorf("the store should have refused a write under epoch %d, but: %v", old.epoch, err)
	}
	if epoch, value, err := d.store.read(ctx); err != nil || epoch != current.epoch || !strings.HasPrefix(value, current.replica) {
		return fmt.Errorf("the store should hold what %s wrote under epoch %d, not %q under %d (%v)", current.replica, current.epoch, value, epoch, err)
	}
	d.add("The store refuses it: it has seen epoch %d. It goes on accepting the writes of %s.", current.epoch, current.replica)
	pieces := current.pieces + 2
	return d.crew.await(ctx, current.replica+" goes on with its work", func() bool { return current.pieces >= pieces })
}

func (d *demo) cleanUp() {
	if err := d.removeKeys(); err != nil {
		fmt.Fprintln(os.Stderr, "controller: removing the keys of the demo:", err)
	}
}

// removeKeys removes the keys of this run, whatever has become of the rest.
func (d *demo) removeKeys() error {
	return d.redis.remove(context.Background(), d.key("lease"), d.key("epoch"), d.key("store"))
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// mode says how the lease is taken.
func (s *servers) mode() string {
	if s.leases.Mode() == redlock.ModeRedlock {
		return fmt.Sprintf("Redlock, %d of %d servers", s.leases.Quorum(), len(s.clients))
	}
	return "one server"
}
