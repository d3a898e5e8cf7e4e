package redlock

import (
	"context"
	"sync"
	"time"
)

// Lock waits for the lease until ctx ends. While somebody else holds it nothing is polled: Lock is woken by
// the release, or by the end of the holder's TTL. Where subscriptions do not work (an ACL, a Ring) it
// looks every RetryDelay instead. While too few nodes answer, it tries again every RetryDelay.
//
// It returns nil when the lease is held. If ctx ends the error is ctx's, and that of the last attempt. Errors
// that waiting cannot cure are returned at once, as TryLock returns them.
func (l *Lock) Lock(ctx context.Context) error {
	return l.acquire(ctx, func() error {
		err := l.attempt(ctx)
		if err == nil || hopeless(err) {
			return err
		}
		w := l.m.Watch(l.key)
		defer w.Close()
		w.subscribed(ctx)
		for meetings := 0; ; meetings++ { // subscribed: from here on no release is missed
			if err = l.attempt(ctx); err == nil || hopeless(err) {
				return err
			}
			h, held, readErr := l.m.Holder(ctx, l.key)
			var stop error
			switch {
			case readErr == nil && held:
				meetings = 0
				stop = w.Wait(ctx, h.TTL)
			case readErr == nil: // contenders met, and nobody has it
				stop = sleep(ctx, upTo(min(l.m.cfg.RetryDelay, 5*time.Millisecond<<min(meetings, 10))))
			default:
				stop = sleep(ctx, l.m.retryDelay())
			}
			if stop != nil {
				return gaveUp(l.key, stop, err)
			}
		}
	})
}

const (
	// afterTTL is waited beyond a holder's TTL, because the key goes when its last millisecond
	// is over. Many may wait for that moment: up to expiryJitter is added at random.
	afterTTL     = 2 * time.Millisecond
	expiryJitter = 8 * time.Millisecond

	// releaseSpread is the time over which those who heard of a release on several nodes come back.
	releaseSpread = 4 * time.Millisecond

	// releaseGrace is the time for a release that was heard from one node to reach a majority.
	releaseGrace = 10 * time.Millisecond
)

// Watch waits for a lease to become free. It is made by Manager.Watch, used by one goroutine, and must be closed.
type Watch struct {
	// Poll is how often, plus up to half of it at random, Wait returns where releases cannot be heard.
	// Manager.Watch sets it to the RetryDelay; another, positive value must be set before the first Wait.
	Poll time.Duration

	m       *Manager
	channel string
	wake    chan struct{} // holds a token when there is something new to look at

	mu       sync.Mutex
	live     map[int]bool // nodes that confirmed the subscription
	released map[int]bool // nodes that told of a release since the last Wait
	again    bool         // a subscription was made or renewed: a release may have been missed
}

// Watch begins to listen for releases of the lease at key, over one subscription connection per node that
// all watches share. Close it when done.
func (m *Manager) Watch(key string) *Watch {
	w := &Watch{
		Poll:     m.cfg.RetryDelay,
		m:        m,
		channel:  releaseChannel(key),
		wake:     make(chan struct{}, 1),
		live:     make(map[int]bool),
		released: make(map[int]bool),
	}
	for _, p := range m.peers {
		p.listener.add(m, w)
	}
	w.forget() // whatever is subscribed to already: nobody has looked yet, so nothing was missed
	return w
}

// Close ends the watch.
func (w *Watch) Close() {
	for _, p := range w.m.peers {
		p.listener.remove(w)
	}
}

// Wait returns nil when it is time to look at the lease again: a release was heard, or may have passed unheard,
// since the watch began or since the last Wait returned; or ttl, the holder's, is over; or, where a majority of
// the nodes cannot be listened to, after Poll. It returns ctx's error if ctx ends first, and ErrClosed if the
// manager does.
func (w *Watch) Wait(ctx context.Context, ttl time.Duration) error {
	end := time.Now().Add(min(ttl, MaxExpiry) + afterTTL + upTo(expiryJitter))
	timer := time.NewTimer(w.patience(end))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			w.forget()
			return nil
		case <-w.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-w.m.ctx.Done():
			return ErrClosed
		}
		switch heard, enough := w.heard(); {
		case enough:
			err := sleep(ctx, w.spread())
			w.forget() // also what the last nodes told meanwhile: the look to come covers it
			return err
		case heard:
			timer.Reset(min(releaseGrace, w.patience(end)))
		default:
			timer.Reset(w.patience(end)) // a connection came, or went
		}
	}
}

// patience is how long to wait if nothing is heard.
func (w *Watch) patience(end time.Time) time.Duration {
	if w.isLive() {
		return time.Until(end)
	}
	return min(time.Until(end), jittered(w.Poll))
}

func (w *Watch) spread() time.Duration {
	if w.m.Mode() == ModeSingle {
		return 0 // one server lets them in one by one
	}
	return upTo(releaseSpread)
}

// subscribed waits for a majority of the subscriptions, for OperationTimeout at most: without them Wait polls.
func (w *Watch) subscribed(ctx context.Context) {
	timer := time.NewTimer(w.m.cfg.OperationTimeout)
	defer timer.Stop()
	for !w.isLive() && w.m.canSubscribe() {
		select {
		case <-w.wake:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
	w.forget()
}

// isLive reports whether enough nodes are listened to that no release can pass unheard: it takes a majority.
func (w *Watch) isLive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.live) >= w.m.Quorum()
}

// heard reports whether some node, and whether enough of them, told something new.
func (w *Watch) heard() (some, enough bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.released) > 0, w.again || len(w.released) >= w.m.Quorum()
}

func (w *Watch) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.released)
	w.again = false
}

// onRelease is told by the listener of node i.
func (w *Watch) onRelease(i int) { w.note(func() { w.released[i] = true }) }

// onSubscribed is told by the listener of node i, again after every new connection. With the one that completes a
// majority comes the question what was missed before.
func (w *Watch) onSubscribed(i int) {
	w.note(func() {
		before := len(w.live)
		w.live[i] = true
		w.again = w.again || before < w.m.Quorum() && len(w.live) == w.m.Quorum()
	})
}

// onDisconnected is told by the listener of node i.
func (w *Watch) onDisconnected(i int) { w.note(func() { delete(w.live, i) }) }

func (w *Watch) note(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
