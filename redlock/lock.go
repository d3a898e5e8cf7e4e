package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/ndyakov/go-redlock/internal/boottime"
)

// Lock is a handle for leases at one key. It holds at most one lease at a time and may be used
// again after Unlock or loss. It is safe for concurrent use; what it knows of its lease
// (Held, Lost, ValidUntil, FencingToken) it answers without the network and at once, also while
// another goroutine is in TryLock, Extend or Unlock.
type Lock struct {
	m       *Manager
	key     string
	opts    lockOptions
	invalid error // what is wrong with key or options

	turn chan struct{} // holds a token while somebody acquires

	mu   sync.Mutex // guards term and what it points to; never held across the network
	term *term      // the latest, or an idle one
}

// term is one lease in the life of a handle, from its acquisition to its end.
type term struct {
	lease *lease
	value string // as stored
	fence uint64

	state state
	from  boottime.Instant // before the first send of the acquisition, or of the last good renewal
	valid time.Duration    // how long after from the lease can be relied on

	lost     chan struct{} // closed on loss
	done     chan struct{} // closed on loss or release
	watchdog *time.Timer
	contexts map[*context.CancelCauseFunc]struct{}
	renewing chan struct{} // holds a token while a renewal is under way
}

type state int

const (
	idle     state = iota // never acquired
	held                  //
	lost                  // by renewal or by the clock
	released              // by Unlock
)

// cause returns why there is no lease in this state.
func (s state) cause() error {
	if s == lost {
		return ErrLockLost
	}
	return ErrNotHeld
}

func (t *term) left() time.Duration { return t.from.Add(t.valid).Until() }

// Key returns the key that the handle was made for.
func (l *Lock) Key() string { return l.key }

// Held reports whether the lease can be relied on at this moment. It compares clocks: a process
// that was stopped past the end of its lease is told so by its first call.
func (l *Lock) Held() bool {
	_, s := l.look()
	return s == held
}

// ValidUntil returns the moment until which the lease can be relied on, clock drift deducted;
// the zero Time when none is held.
func (l *Lock) ValidUntil() time.Time {
	t, s := l.look()
	if s != held {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.from.Add(t.valid).Time()
}

// FencingToken returns the token of the handle's latest acquisition, also after its end; 0 without
// WithFencingToken or before the first acquisition. Tokens grow with every acquisition of the key
// by anybody; the protected resource must refuse any below the highest that it has seen.
func (l *Lock) FencingToken() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term.fence
}

// Lost returns a channel that is closed when the lease is lost: when it cannot be renewed, has
// disappeared, or its validity ends. It is closed before the key can expire in Redis. Unlock does
// not close it. Every lease has a channel of its own; the one of a new handle is its first lease's.
func (l *Lock) Lost() <-chan struct{} {
	t, _ := l.look()
	return t.lost
}

// Context returns a copy of parent that is cancelled with cause ErrLockLost when the lease is lost,
// and with ErrNotHeld when it is unlocked, or if none is held. The CancelFunc frees its resources.
func (l *Lock) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	t, _ := l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.state != held {
		cancel(t.state.cause())
		return ctx, func() {}
	}
	t.contexts[&cancel] = struct{}{}
	return ctx, func() {
		l.mu.Lock()
		delete(t.contexts, &cancel)
		l.mu.Unlock()
		cancel(context.Canceled)
	}
}

// look returns the current term and its state.
func (l *Lock) look() (*term, state) {
	l.mu.Lock()
	t := l.term
	l.mu.Unlock()
	return t, l.stateOf(t)
}

// stateOf returns the state of t after a glance at the clock.
func (l *Lock) stateOf(t *term) state {
	l.mu.Lock()
	over := t.state == held && t.left() <= 0
	l.mu.Unlock()
	if over {
		l.expire(t)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.state
}

// begin makes the lease the handle's, unless its validity is over already.
func (l *Lock) begin(t *term) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := t.left()
	if left <= 0 {
		return false
	}
	t.state = held
	t.done = make(chan struct{})
	t.contexts = make(map[*context.CancelCauseFunc]struct{})
	t.renewing = make(chan struct{}, 1)
	t.lost = l.term.lost
	if l.term.state != idle {
		t.lost = make(chan struct{})
	}
	t.watchdog = time.AfterFunc(watch(left), func() { l.bark(t) })
	l.term = t
	if l.opts.autoRenew {
		l.m.spawn(func() { l.keepRenewing(t) })
	}
	return true
}

// shorten moves the end of a held term forward, if it is later than left from now, and returns
// how long the term has left; nothing when it is over.
func (l *Lock) shorten(t *term, left time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.state != held {
		return 0
	}
	if early := t.left() - left; early > 0 {
		t.valid -= early
		t.watchdog.Reset(watch(left))
	}
	return t.left()
}

// prolong gives a held term a new beginning and validity, unless it is over already.
func (l *Lock) prolong(t *term, from boottime.Instant, valid time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.state != held || t.left() <= 0 || from.Add(valid).Until() <= 0 {
		return false
	}
	t.from, t.valid = from, valid
	t.watchdog.Reset(watch(t.left()))
	return true
}

// end takes a held term to its last state, and tells everybody who wants to know.
// It reports false when the term was over before.
func (l *Lock) end(t *term, s state) bool {
	l.mu.Lock()
	if t.state != held {
		l.mu.Unlock()
		return false
	}
	t.state = s
	t.watchdog.Stop()
	close(t.done)
	if s == lost {
		close(t.lost)
	}
	contexts := t.contexts
	t.contexts = nil
	l.mu.Unlock()

	for cancel := range contexts {
		(*cancel)(s.cause())
	}
	return true
}

// expire ends a term whose validity is over. The key may live on for a moment: it is removed.
func (l *Lock) expire(t *term) {
	if l.end(t, lost) {
		l.m.cfg.Logger.Info("Lease lost: its validity is over", "key", l.key)
		l.m.undo(l.m.ctx, t.lease)
	}
}

// bark is the watchdog's: it looks whether the lease is over, or sleeps on.
func (l *Lock) bark(t *term) {
	l.mu.Lock()
	left := t.left()
	if t.state == held && left > 0 {
		t.watchdog.Reset(watch(left))
	}
	l.mu.Unlock()
	if left <= 0 {
		l.expire(t)
	}
}

// watch is how long the watchdog sleeps. Timers stand still while the machine is
// suspended: a look every second finds out soon after.
func watch(left time.Duration) time.Duration { return min(left, time.Second) }
