package sim

import (
	"context"
	"errors"
	"time"

	"github.com/ndyakov/go-redlock/election"
)

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
	j.examine()
}

// examine looks at everything that must be so at any moment.
func (j *judge) examine() {
	if len(j.found) > 5 {
		return
	}
	tokens := j.w.tokens()
	for _, t := range j.tenures {
		j.checkIsTrue(t, tokens)
	}
	j.checkOneHolder()
	for _, t := range j.tenures {
		j.checkLossIsTold(t)
	}
	for n, token := range tokens {
		j.checkNothingStrays(n, token)
	}
}

// checkOneHolder looks for two who hold the lease at once.
func (j *judge) checkOneHolder() {
	for i, a := range j.tenures {
		for _, b := range j.tenures[i+1:] {
			// a is asked again: it is a's tenure still, so it was held all the time.
			if j.trusted(a) && j.trusted(b) && a.holds() && b.holds() && a.holds() {
				j.fault("%s and %s hold the lease", a.process.name, b.process.name)
			}
		}
	}
}

// checkIsTrue looks for somebody who thinks that he holds the lease while no majority of the nodes has it for him: loss
// must be told before the keys can expire, and a lease must last until the work has ended. Who holds what an
// administrator has deleted must learn it before a TTL is over.
func (j *judge) checkIsTrue(t *tenure, tokens []string) {
	holders := 0
	for _, token := range tokens {
		if token == t.token && token != "" {
			holders++
		}
	}
	isTrue := 2*holders > len(tokens)
	switch {
	case !j.trusted(t):
		if t.entered.Before(j.lastDeleted) && time.Since(j.lastDeleted) > j.w.plan.maxTTL() && t.holds() {
			j.fault("%s holds a lease that was deleted %v ago", t.process.name, time.Since(j.lastDeleted))
		}
	case isTrue:
	case t.untold(), t.holds():
		j.fault("%s thinks that it holds the lease, which %d of %d nodes have", t.process.name, holders, len(tokens))
	case t.works() && j.w.calm():
		j.fault("%s works on, and has released the lease", t.process.name)
	}
}

// untold reports whether a handle has not been told that its lease is over. A look at the handle itself would tell it.
func (t *tenure) untold() bool {
	select {
	case <-t.lost:
		return false
	default:
		return t.lock != nil
	}
}

// works reports whether the work of a term that was not lost goes on.
func (t *tenure) works() bool {
	return t.term != nil && !t.returned && !errors.Is(context.Cause(t.term), election.ErrLost)
}

// checkLossIsTold looks for a handle that holds nothing without having said so, and the other way round.
func (j *judge) checkLossIsTold(t *tenure) {
	if t.lock == nil {
		return
	}
	held := t.holds()
	switch untold := t.untold(); {
	case held && !untold && t.holds():
		j.fault("%s was told of a loss and holds the lease", t.process.name)
	case !held && untold:
		j.fault("%s holds nothing and was not told", t.process.name)
	}
}

// stray is a lease on a node that nobody holds.
type stray struct {
	token string
	since time.Time
}

// checkNothingStrays looks for leases that nobody holds, such as those of attempts that failed. Where nothing
// is wrong with the network they must be gone soon. A process that has gone leaves what it held, and what it had not yet
// undone, to the TTL.
func (j *judge) checkNothingStrays(n int, token string) {
	s := &j.strays[n]
	gone := time.Since(j.lastGone) < 2*j.w.plan.maxTTL()
	switch {
	case token == "" || gone || j.owned(token) || j.w.troubled(n):
		*s = stray{}
	case s.token != token:
		*s = stray{token, time.Now()}
	case time.Since(s.since) > j.w.plan.grace():
		j.fault("node %d has had a lease that nobody holds for %v", n, time.Since(s.since))
	}
}

// owned reports whether somebody holds the lease by this token, or may hold it: what a majority had when an administrator
// had just deleted the lease need not be what was acquired.
func (j *judge) owned(token string) bool {
	for _, t := range j.tenures {
		if t.token == token || !j.trusted(t) {
			return true
		}
	}
	return false
}

// progressed reports whether somebody has got the lease since the faults ended, or holds it now.
func (j *judge) progressed(healed time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lastEntered.After(healed) {
		return true
	}
	for _, t := range j.tenures {
		if t.holds() {
			return true
		}
	}
	return false
}

// checkNothingIsLeft is called when everybody has ended, and every TTL is over.
func (j *judge) checkNothingIsLeft() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for n, token := range j.w.tokens() {
		if token != "" {
			j.fault("node %d still has the lease", n)
		}
	}
	for _, t := range j.tenures {
		j.fault("%s: its term has never ended", t.process.name)
	}
}
