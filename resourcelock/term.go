package resourcelock

import (
	"context"
	"errors"
	"time"

	"github.com/ndyakov/go-redlock/redlock"
)

// term is one acquisition of the lease: until its release, or until the elector has given it up.
type term struct {
	lock   *redlock.Lock
	record string // the metadata of the lease
	stop   func() // ends the watch for its loss

	// Guarded by Lock.mu.
	led     bool          // the elector has said that it leads
	renewed time.Time     // when the lease was acquired, or renewed
	ttl     time.Duration // to what
}

// held reports whether the lease of t can be relied on at this moment. There may be no term.
func (t *term) held() bool { return t != nil && t.lock.Held() }

var errTermLost = errors.New("the lease was lost, and the elector has not yet stopped leading")

// current returns the term of this lock, nil when there is none.
func (l *Lock) current() *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// begin makes t the term, and has its loss told.
func (l *Lock) begin(t *term) {
	ctx, cancel := t.lock.Context(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	unwatch := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), redlock.ErrLockLost) {
			l.onLost(t)
		}
	})
	t.stop = func() { unwatch(); cancel() }
	t.renewed = time.Now()
	l.term = t
	l.highest = max(l.highest, t.lock.FencingToken())
	l.tell()
}

// led notes that the elector leads in the current term.
func (l *Lock) led() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != nil {
		l.term.led = true
	}
}

// prolonged notes that t was renewed.
func (l *Lock) prolonged(t *term, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.renewed, t.ttl = time.Now(), ttl
}

// onLost tells the loss of t to whoever works under it, unless it has ended otherwise.
func (l *Lock) onLost(t *term) {
	if l.current() != t {
		return
	}
	l.log.Info("Lost the lease", "epoch", t.lock.FencingToken())
	l.cancelContexts(redlock.ErrLockLost)
}

// cancelContexts cancels what Context has returned.
func (l *Lock) cancelContexts(cause error) {
	l.mu.Lock()
	contexts := l.contexts
	l.contexts = make(map[*context.CancelCauseFunc]struct{})
	l.mu.Unlock()
	for cancel := range contexts {
		(*cancel)(cause)
	}
}

// end gives t up. What is left of its lease expires.
func (l *Lock) end(t *term) {
	l.mu.Lock()
	ended := t != nil && l.term == t
	if ended {
		l.term = nil
		l.tell()
	}
	l.mu.Unlock()
	if ended {
		t.stop()
	}
}

// clear makes room for a new term. It reports false while there is a lost one that the elector has not given up: a
// leader never slips from one term into the next without its callbacks.
//
// An elector that never said that it leads never says that it stopped either: a MultiLock does so that got
// this lease and not the other one. By the end of a second TTL any elector that did lead has stopped.
func (l *Lock) clear() bool {
	l.mu.Lock()
	t := l.term
	forgotten := t != nil && !t.led && time.Since(t.renewed) > 2*t.ttl
	l.mu.Unlock()
	if forgotten {
		l.end(t)
	}
	return t == nil || forgotten
}

// tell wakes those who wait for another term. The caller holds l.mu.
func (l *Lock) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}
