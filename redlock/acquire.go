package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/boottime"
)

// TryLock tries to acquire the lease, Config.Attempts times, RetryDelay plus up to half of it apart.
//
// It returns nil when the lease is held; ErrAlreadyHeld when this handle holds one already; the error
// of ctx when that ended first; ErrFencingUnsupported, or an error that names the field, for options
// that cannot work. Otherwise it returns a *QuorumError, which is ErrNotAcquired: Contended when somebody
// else holds the lease; NodeErrors says why where nodes failed. A failed TryLock leaves no key
// behind; what cannot be undone at once is undone in the background.
//
// The algorithm is the one of https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/:
// SET NX with a random token on every node at once, accepted if a majority granted it and
// TTL - elapsed - drift is positive.
func (l *Lock) TryLock(ctx context.Context) error {
	return l.acquire(ctx, func() error {
		for i := 1; ; i++ {
			err := l.attempt(ctx)
			if err == nil || i == l.opts.attempts || hopeless(err) {
				return err
			}
			if stop := sleep(ctx, l.m.retryDelay()); stop != nil {
				return gaveUp(l.key, stop, err)
			}
		}
	})
}

// acquire runs try, alone on this handle, if the handle holds nothing.
func (l *Lock) acquire(ctx context.Context, try func() error) error {
	if l.invalid != nil {
		return l.invalid
	}
	if err := l.m.usable(ctx); err != nil {
		return failed("acquire", l.key, err)
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return failed("acquire", l.key, ctx.Err())
	}
	if l.Held() {
		return failed("acquire", l.key, ErrAlreadyHeld)
	}
	return try()
}

// attempt is one run of the algorithm, under a token of its own.
func (l *Lock) attempt(ctx context.Context) error {
	floor, err := l.fenceFloor(ctx)
	if err != nil {
		return err
	}
	m, valid := l.m, l.m.Validity(l.opts.expiry)
	t := &term{
		lease: newLease(l.key, len(m.peers)),
		from:  boottime.Now(), // before the first send
		valid: valid,
	}
	v, grants, err := l.seize(ctx, t, floor)
	if err == nil && v.verdict() == granted && l.byAgreement() {
		v, err = l.agree(ctx, t, grants)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		m.undo(ctx, t.lease)
		return failed("acquire", l.key, err)
	}

	t.value = encodeValue(t.lease.token, t.fence, l.opts.metadata, l.opts.bare())
	if v.verdict() == granted && l.begin(t) {
		m.cfg.Logger.V(1).Info("Lease acquired", "key", l.key, "fencingToken", t.fence, "validity", valid)
		return nil
	}
	if !v.mayBeHeld() {
		t.lease.hush()
	}
	l.retreat(ctx, t.lease, v)
	return v.error("acquire", l.key, ErrNotAcquired)
}

// seize asks every node for the lease. It leaves the highest fencing token that was heard of in t, and returns what
// each node answers: to be read when lease.ended says so, also later. It fails only when ctx ends.
func (l *Lock) seize(ctx context.Context, t *term, floor uint64) (*votes, []answer[grant], error) {
	m, ls := l.m, t.lease
	for i := range m.peers {
		ls.creates(i, l.opts.expiry)
	}
	v, grants := m.newVotes(), make([]answer[grant], len(m.peers))
	ph := ask(m, ctx, func(ctx context.Context, p *peer) (grant, error) {
		g, err := l.acquireOn(ctx, p, ls, floor)
		grants[p.index] = answer[grant]{p.index, g, err}
		ls.created(p.index, err)
		if err == nil && !g.ok && p.sendsOnce() {
			ls.wasDenied(p.index)
		}
		if err == nil && g.ok && m.cfg.RestartGuard {
			err = p.guard(ctx, l.key, l.opts.expiry)
		}
		return g, err
	})
	err := ph.collect(ctx, t.valid, func(a answer[grant]) bool {
		t.fence = max(t.fence, a.value.fence)
		return v.count(a.node, a.value.ok, a.err) != undecided
	})
	v.close(noAnswer(m.cfg.OperationTimeout))
	return v, grants, err
}

// grant is a node's answer to an acquisition: with the fencing token, or with what that must exceed.
type grant struct {
	ok    bool
	fence uint64
}

func (l *Lock) acquireOn(ctx context.Context, p *peer, ls *lease, floor uint64) (grant, error) {
	if l.opts.bare() {
		ok, err := p.setNX(ctx, l.key, ls.token, l.opts.expiry)
		return grant{ok: ok}, err
	}
	script, keys := acquireScript, []string{l.key}
	if l.opts.counterKey != "" {
		keys = append(keys, l.opts.counterKey)
	}
	if l.byAgreement() {
		script = proposeScript
	}
	v, err := p.run(ctx, script, true, keys,
		ls.token, milliseconds(l.opts.expiry), l.opts.metadata, strconv.FormatUint(floor, 10))
	if errors.Is(err, redis.Nil) {
		return grant{}, nil
	}
	if err != nil {
		return grant{}, err
	}
	fence, err := strconv.ParseUint(fmt.Sprint(v), 10, 64)
	return grant{ok: err == nil, fence: fence}, err
}

// fenceFloor asks the caller what the next fencing token must exceed.
func (l *Lock) fenceFloor(ctx context.Context) (uint64, error) {
	if l.opts.fenceFloor == nil {
		return 0, nil
	}
	floor, err := l.opts.fenceFloor(ctx)
	if err != nil {
		return 0, failed("acquire", l.key, fmt.Errorf("asking for the fence floor: %w", err))
	}
	return floor, nil
}

// retreat undoes a lease that did not come, or did not stay, about, and adds to v what the nodes say
// about it. It waits for the nodes that may hold the key and have answered before, not for silent ones.
func (l *Lock) retreat(ctx context.Context, ls *lease, v *votes) {
	waiting := 0
	awaited := make([]bool, len(l.m.peers))
	for i, answered := range v.answered {
		if err := v.errs[i]; answered && (err == nil || !notExecuted(err)) {
			awaited[i] = true
			waiting++
		}
	}
	if waiting == 0 {
		l.m.undo(ctx, ls)
		return
	}
	undone := l.m.undo(ctx, ls)
	_ = undone.collect(ctx, l.m.cfg.OperationTimeout, func(a answer[bool]) bool {
		if !awaited[a.node] {
			return false
		}
		switch {
		case v.errs[a.node] == nil && permanent(a.err):
			v.errs[a.node] = a.err // such as a key of another type, which a SET NX does not tell
		case v.denied[a.node] && a.err == nil && a.value:
			v.recant(a.node, errOwnKey)
		}
		waiting--
		return waiting == 0
	})
	for i, p := range l.m.peers {
		if v.denied[i] && p.settler.owes(l.key) {
			v.errs[i] = errOwnLeftover
		}
	}
}

// hopeless reports whether another attempt would fail in the same way.
func hopeless(err error) bool {
	var q *QuorumError
	if !errors.As(err, &q) {
		return true // ctx, closed, or the caller's own floor function
	}
	bad := 0
	for _, e := range q.NodeErrors {
		if permanent(e) || errors.Is(e, ErrClosed) {
			bad++
		}
	}
	return bad > 0 && bad >= q.Required
}

// gaveUp reports that ctx ended between two attempts, and how the last one went.
func gaveUp(key string, stop, last error) error {
	return fmt.Errorf("redlock: acquire %q: %w; before that: %w", key, stop, last)
}

// retryDelay returns the time until the next attempt: contenders that met must not meet again.
func (m *Manager) retryDelay() time.Duration { return jittered(m.cfg.RetryDelay) }

func jittered(d time.Duration) time.Duration { return d + upTo(d/2) }

// upTo returns a random duration from 0 to d.
func upTo(d time.Duration) time.Duration { return rand.N(d + 1) }
