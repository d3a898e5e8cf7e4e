package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/ndyakov/go-redlock/resourcelock"
)

const (
	jobPeriod = 300 * time.Millisecond // from one piece of work to the next
	jobEffort = 100 * time.Millisecond // what a piece still takes after its write; nothing interrupts it
)

// job is the singleton work of the leader: every now and then it writes to a store that refuses writes of
// earlier terms.
type job struct {
	lock  *resourcelock.Lock
	store *store // nil with Redlock
	say   *reporter
	log   logr.Logger
}

// NeedLeaderElection tells the manager to run the job on the leader only.
func (j *job) NeedLeaderElection() bool { return true }

// Start works until ctx ends, and returns only when the piece at hand is done: until then the manager keeps the
// lease, so that nobody else begins.
func (j *job) Start(ctx context.Context) error {
	epoch := j.lock.Epoch() // once: whatever this term does bears this term's epoch
	if epoch == 0 {
		return errors.New("the lease was lost before the work began")
	}
	j.say.report(leading, epoch, "")
	defer j.say.report(stopped, epoch, "")
	tick := time.NewTicker(jobPeriod)
	defer tick.Stop()
	for n := 1; ctx.Err() == nil; n++ {
		if err := j.piece(ctx, epoch, n); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// piece returns an error only where it is pointless to go on: somebody leads under a higher epoch.
func (j *job) piece(ctx context.Context, epoch uint64, n int) error {
	value := fmt.Sprintf("%s, write %d", j.lock.Identity(), n)
	if j.store != nil {
		err := j.store.write(ctx, epoch, value)
		if errors.Is(err, errStale) {
			j.say.report(refused, epoch, err.Error())
			return err
		}
		if err != nil {
			j.log.Info("The write failed; it is tried again", "epoch", epoch, "reason", err.Error())
			return nil
		}
	}
	j.say.report(worked, epoch, value)
	time.Sleep(jobEffort)
	return nil
}

// herald reports that the manager has started, whoever leads.
type herald struct{ say *reporter }

func (h herald) NeedLeaderElection() bool { return false }

func (h herald) Start(ctx context.Context) error {
	h.say.report(running, 0, "")
	<-ctx.Done()
	return nil
}

// reporter writes events, a line of JSON each.
type reporter struct {
	replica string
	mu      sync.Mutex
	out     *json.Encoder
}

func newReporter(w io.Writer, replica string) *reporter {
	return &reporter{replica: replica, out: json.NewEncoder(w)}
}

func (r *reporter) report(what string, epoch uint64, detail string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Where nobody reads any more, the process is about to end.
	_ = r.out.Encode(event{time.Now(), r.replica, what, epoch, detail})
}
