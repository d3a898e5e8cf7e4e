package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ndyakov/go-redlock/redlock"
)

// judge knows who holds what, and says what must not be.
type judge struct {
	w *world

	mu          sync.Mutex
	tenures     []*tenure // those not left yet
	highest     uint64    // fencing token
	lastDeleted time.Time // by an administrator
	lastEntered time.Time
	lastCrash   time.Time
	strays      []map[string]*stray // by node: values that nobody owns
	found       []string
}

// tenure is one acquisition, for as long as its candidate has not left it.
type tenure struct {
	candidate int
	lock      *redlock.Lock
	lost      <-chan struct{}
	began     time.Time // before the first send
	value     string    // what a majority of the nodes showed when it was entered
}

// stray is a value on a node that nobody owns.
type stray struct{ since time.Time }

func newJudge(w *world) *judge {
	j := &judge{w: w}
	for range w.plan.nodes {
		j.strays = append(j.strays, make(map[string]*stray))
	}
	return j
}

// fault adds to what is wrong. The caller holds the mutex.
func (j *judge) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	j.w.note("FAULT: %s", text)
	j.found = append(j.found, text)
}

// entered is called when an acquisition has returned.
func (j *judge) entered(c int, l *redlock.Lock, began time.Time) {
	fence := l.FencingToken()
	j.w.note("%d acquired, token %d, valid for %v", c, fence, time.Until(l.ValidUntil()))
	j.mu.Lock()
	t := &tenure{candidate: c, lock: l, lost: l.Lost(), began: began, value: j.w.majorityValue()}
	j.tenures = append(j.tenures, t)
	j.lastEntered = time.Now()
	if j.w.plan.nodes == 1 && fence <= j.highest && j.trusted(t) && l.Held() {
		j.fault("candidate %d got token %d, and a higher one is known", c, fence)
	}
	j.highest = max(j.highest, fence)
	j.mu.Unlock()
	j.check()
}

// leaves is called before a lease is given up, or its candidate crashes.
func (j *judge) leaves(l *redlock.Lock, crash bool) {
	j.check()
	j.mu.Lock()
	defer j.mu.Unlock()
	if crash {
		j.lastCrash = time.Now()
	}
	for i, t := range j.tenures {
		if t.lock == l {
			j.tenures = append(j.tenures[:i], j.tenures[i+1:]...)
			return
		}
	}
}

// deleted is called before an administrator deletes the lease: whoever asked for it before may be surprised.
func (j *judge) deleted() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lastDeleted = time.Now()
}

func (j *judge) trusted(t *tenure) bool { return t.began.After(j.lastDeleted) }

func (j *judge) floor(context.Context) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.highest, nil
}

// watch checks all the time.
func (j *judge) watch(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(ctx, j.w.plan.ttl/50)
		j.check()
	}
}

func (j *judge) check() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.found) > 5 {
		return
	}
	j.checkOneHolder()
	j.checkLossIsTold()
	j.checkNothingStrays()
}

// checkOneHolder looks for two handles that are held at once.
func (j *judge) checkOneHolder() {
	for i, a := range j.tenures {
		for _, b := range j.tenures[i+1:] {
			if !j.trusted(a) || !j.trusted(b) {
				continue
			}
			// Held is asked of a again: it is a's tenure still, so it was held all the time.
			if a.lock.Held() && b.lock.Held() && a.lock.Held() {
				j.fault("candidates %d and %d hold the lease at %v", a.candidate, b.candidate, time.Since(j.w.start))
			}
		}
	}
}

// checkLossIsTold looks for a handle that holds nothing without having said so, and the other way round.
func (j *judge) checkLossIsTold() {
	for _, t := range j.tenures {
		held := t.lock.Held()
		select {
		case <-t.lost:
			if held {
				j.fault("candidate %d was told of a loss and holds the lease", t.candidate)
			}
		default:
			if !held && !t.lock.Held() { // the look itself tells
				select {
				case <-t.lost:
				default:
					j.fault("candidate %d holds nothing and was not told", t.candidate)
				}
			}
		}
	}
}

// checkNothingStrays looks for values that nobody owns, such as those of attempts that failed. Where nothing
// is wrong with the network they must be gone within a few operation timeouts. A candidate that crashed leaves what
// it held, and what it had not yet undone, to the TTL.
func (j *judge) checkNothingStrays() {
	grace := 4 * j.w.plan.timeout
	crashed := time.Since(j.lastCrash) < 2*j.w.plan.maxTTL()
	for n, node := range j.w.nodes {
		value, err := node.Get(leaseKey)
		if err != nil || crashed || j.owned(value) || j.w.troubled(n) {
			clear(j.strays[n])
			continue
		}
		s := j.strays[n][value]
		if s == nil {
			clear(j.strays[n])
			j.strays[n][value] = &stray{time.Now()}
		} else if time.Since(s.since) > grace {
			j.fault("node %d has had a lease that nobody owns for %v", n, time.Since(s.since))
		}
	}
}

func (j *judge) owned(value string) bool {
	for _, t := range j.tenures {
		if t.value == value {
			return true
		}
	}
	return false
}

// checkProgress is called a while after the last fault.
func (j *judge) checkProgress(healed time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lastEntered.Before(healed) {
		j.fault("nobody acquired the lease within %v of the end of all faults", time.Since(healed))
	}
}

// checkNothingIsLeft is called when everybody has ended, and every TTL is over.
func (j *judge) checkNothingIsLeft() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, n := range j.w.nodes {
		if n.Exists(leaseKey) {
			j.fault("node %d still has the lease", i)
		}
	}
}
