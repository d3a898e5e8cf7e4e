package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/redlock"
)

// judge knows who holds what, and says what must not be.
type judge struct {
	w *world

	mu          sync.Mutex
	tenures     []*tenure // those not left yet
	highest     uint64    // fencing token
	lastDeleted time.Time // by an administrator
	lastGone    time.Time // a process that may have left something behind
	lastEntered time.Time
	strays      []stray // by node
	found       []string
}

// tenure is one acquisition, for as long as its candidate has not left it.
type tenure struct {
	process *process
	began   time.Time // no later than the first send
	entered time.Time // when the candidate had it
	token   string    // what a majority of the nodes had when it was entered
	fence   uint64
	holds   func() bool // whether the candidate thinks that it holds the lease

	lock *redlock.Lock // of a locker
	lost <-chan struct{}

	term     context.Context // of an elector's work
	stopped  bool            // OnStoppedLeading was called
	returned bool            // OnStartedLeading has returned
}

func newJudge(w *world) *judge { return &judge{w: w, strays: make([]stray, w.plan.nodes)} }

// fault adds to what is wrong. The caller holds the mutex.
func (j *judge) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	j.w.note("FAULT: %s", text)
	j.found = append(j.found, text)
}

func (j *judge) report(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fault(format, args...)
}

// entered is called when an acquisition has returned, or a term has begun.
func (j *judge) entered(t *tenure) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if t.process.dead.Load() {
		t.stopped = true
		return
	}
	for _, other := range j.tenures {
		if other.process == t.process {
			j.fault("%s begins a term before the work of its last one has ended", t.process.name)
		}
	}
	t.token, t.entered = j.w.majority(), time.Now()
	j.tenures = append(j.tenures, t)
	j.lastEntered = time.Now()
	if t.fence == 0 && j.w.plan.fenced() {
		j.fault("%s got no token", t.process.name)
	}
	if t.fence != 0 && t.fence <= j.highest && j.trusted(t) && t.holds() {
		j.fault("%s got token %d, and %d is known", t.process.name, t.fence, j.highest)
	}
	j.highest = max(j.highest, t.fence)
	j.examine()
}

// left is called before a locker releases its lease.
func (j *judge) left(p *process) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.drop(func(t *tenure) bool { return t.process == p })
}

// gone is called before a process disappears, perhaps with something left undone: what it does from now on nobody sees.
func (j *judge) gone(p *process) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lastGone = time.Now()
	j.drop(func(t *tenure) bool { return t.process == p })
}

func (j *judge) drop(which func(*tenure) bool) { j.tenures = slices.DeleteFunc(j.tenures, which) }

// stopped is OnStoppedLeading.
func (j *judge) stopped(p *process) {
	p.note("has stopped leading")
	j.mu.Lock()
	defer j.mu.Unlock()
	if p.dead.Load() {
		return
	}
	t := j.term(p)
	if t == nil || t.stopped {
		j.fault("%s stopped leading twice, or what it never began", p.name)
		return
	}
	if t.term.Err() == nil {
		j.fault("%s stopped leading, and its work may go on", p.name)
	}
	if p.elector.IsLeader() {
		j.fault("%s stopped leading, and calls itself the leader", p.name)
	}
	t.stopped = true
	j.close(t)
}

// returned is called when OnStartedLeading returns.
func (j *judge) returned(t *tenure) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t.returned = true
	j.close(t)
}

// close forgets a term that is over in every respect.
func (j *judge) close(t *tenure) {
	if t.stopped && t.returned {
		j.drop(func(other *tenure) bool { return other == t })
	}
}

// term returns the term of an elector that is not over.
func (j *judge) term(p *process) *tenure {
	for _, t := range j.tenures {
		if t.process == p {
			return t
		}
	}
	return nil
}

// steppedDown is called after a StepDown in good order.
func (j *judge) steppedDown(p *process) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if t := j.term(p); t != nil && errors.Is(context.Cause(t.term), election.ErrSteppedDown) {
		j.fault("%s has stepped down, and its term is not over: stopped %v, returned %v", p.name, t.stopped, t.returned)
	}
}

// ran is called when Run has returned.
func (j *judge) ran(p *process, err error) {
	p.note("takes no part any more: %v", err)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.fault("%s: Run says %v", p.name, err)
	}
	if t := j.term(p); t != nil {
		j.fault("%s has ended, and its term has not: stopped %v, returned %v", p.name, t.stopped, t.returned)
	}
}

// deleted is called before an administrator deletes the lease: whoever asked for it before may be surprised.
func (j *judge) deleted() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lastDeleted = time.Now()
}

func (j *judge) trusted(t *tenure) bool { return t.began.After(j.lastDeleted) }

// floor is what a protected resource would know.
func (j *judge) floor(context.Context) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.highest, nil
}
