package main

import (
	"context"
	"errors"
	"sync"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/election"
)

// Elector elects one of several gocron schedulers, whose jobs then run: gocron.WithDistributedElector(elector). It is
// safe for concurrent use.
//
// Two jobs never run in two terms at a time, but a handover can meet a tick: one that falls between two terms is
// skipped, and one that the old leader has run comes again where the clock of the new one is behind. A job that must
// run exactly once per tick records the tick along with what it writes.
type Elector struct {
	*election.Elector

	mu   sync.Mutex
	term context.Context // nil while this scheduler does not lead
	jobs sync.WaitGroup  // that run in the term
}

// errFollows is the answer to a scheduler that does not lead.
var errFollows = errors.New("another scheduler leads")

// NewElector returns a candidate: call Run beside the scheduler. The callbacks of cfg are its own.
func NewElector(cfg election.Config) (e *Elector, err error) {
	e = new(Elector)
	cfg.Callbacks = leaderelection.LeaderCallbacks{OnStartedLeading: e.lead, OnStoppedLeading: func() {}}
	cfg.ReleaseOnCancel = true
	e.Elector, err = election.New(cfg)
	return e, err
}

// lead lets jobs run until the term ends, and waits for those that are running: so long the lease is held.
func (e *Elector) lead(term context.Context) {
	e.mu.Lock()
	e.term = term
	e.mu.Unlock()
	<-term.Done()
	e.mu.Lock()
	e.term = nil
	e.mu.Unlock()
	e.jobs.Wait()
}

// IsLeader is what a gocron scheduler asks before it runs a job.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term == nil || !e.Elector.IsLeader() {
		return errFollows
	}
	return nil
}

// Job returns fn as a task for gocron. It runs within one term: ctx ends with the term, and epoch is its epoch, for
// everything that fn writes. After a step down or a graceful stop the next leader begins when fn has returned.
func (e *Elector) Job(fn func(ctx context.Context, epoch uint64) error) func() error {
	return func() error {
		e.mu.Lock()
		term := e.term
		if term != nil {
			e.jobs.Add(1)
		}
		e.mu.Unlock()
		if term == nil {
			return errFollows
		}
		defer e.jobs.Done()
		epoch, _ := election.EpochFrom(term)
		return fn(term, epoch)
	}
}
