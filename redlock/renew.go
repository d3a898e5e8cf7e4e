package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/ndyakov/go-redlock/internal/boottime"
)

// Extend prolongs the lease to ttl from now, for this once: the lock's own TTL stays what it was. It
// never creates a lease that the majority no longer has.
//
// It returns nil when a majority prolonged it in time; ErrNotHeld when there is no lease; ErrLockLost
// (mostly in a *QuorumError) when it is lost, which it also is when too few nodes answered. With
// WithRenewDeadline such an attempt is repeated until the deadline instead; if ctx ends meanwhile, the
// error is ErrInconclusive and the lease is still held.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if l.invalid != nil {
		return l.invalid
	}
	if err := checkTTL("ttl", ttl, l.m.cfg.DriftFactor); err != nil {
		return err
	}
	if err := l.m.usable(ctx); err != nil {
		return failed("extend", l.key, err)
	}
	t, s := l.look()
	if s != held {
		return failed("extend", l.key, s.cause())
	}
	return l.renew(ctx, t, ttl, l.opts.renewDeadline)
}

// keepRenewing renews t every interval until it ends: the goroutine of automatic renewal.
func (l *Lock) keepRenewing(t *term) {
	patience := time.Duration(MaxExpiry) // that is: to the end of validity
	if l.opts.deadline {
		patience = l.opts.renewDeadline
	}
	ticker := time.NewTicker(l.opts.renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-t.done:
			return
		case <-l.m.ctx.Done():
			return
		}
		if err := l.renew(l.m.ctx, t, l.opts.expiry, patience); err != nil {
			if errors.Is(err, ErrLockLost) {
				l.m.cfg.Logger.Info("Lease lost: it could not be renewed", "key", l.key, "reason", err.Error())
			}
			return
		}
	}
}

// renew renews t, one renewal at a time: a shorter one must not overtake a longer one. An inconclusive
// attempt is repeated while the last good one is less than patience ago.
func (l *Lock) renew(ctx context.Context, t *term, ttl, patience time.Duration) error {
	select {
	case t.renewing <- struct{}{}:
		defer func() { <-t.renewing }()
	case <-ctx.Done():
		return failed("extend", l.key, ctx.Err())
	}
	var last *votes // of an attempt that too few nodes answered
	for {
		v, outcome := l.renewOnce(ctx, t, ttl, patience)
		switch {
		case outcome == granted:
			return nil
		case v == nil && last != nil: // over before it could be repeated
			return last.error("extend", l.key, l.stateOf(t).cause())
		case v == nil: // over before it was sent
			return failed("extend", l.key, l.stateOf(t).cause())
		case outcome == unknown && l.age(t) < patience:
			last = v
			if sleep(ctx, min(l.pause(), patience-l.age(t))) != nil {
				return l.stillHeld(t, v)
			}
			if l.age(t) >= patience {
				return l.lose(ctx, t, v)
			}
		default:
			return l.lose(ctx, t, v)
		}
	}
}

// renewOnce sends one renewal to every node. It is bounded by the validity that the lease has, not by
// the one that it would get, and by what is left of the patience.
func (l *Lock) renewOnce(ctx context.Context, t *term, ttl, patience time.Duration) (*votes, verdict) {
	m, factor := l.m, l.m.cfg.DriftFactor
	from := boottime.Now() // before the first send
	left := l.shorten(t, validity(ttl, 0, factor))
	if left <= 0 {
		return nil, unknown
	}
	within := min(left, m.cfg.OperationTimeout)
	if rest := patience - l.age(t); rest > 0 {
		within = min(within, rest)
	}

	v := m.newVotes()
	var sure []time.Duration // of the TTL, by node that granted it
	var gone []int
	t.lease.renews(ttl)
	ph := ask(m, ctx, func(ctx context.Context, p *peer) (bool, error) { return p.renew(ctx, t.lease, ttl) })
	err := ph.collect(ctx, within, func(a answer[bool]) bool {
		if a.err == nil && a.value {
			sure = append(sure, t.lease.surely(a.node, ttl))
		} else if a.err == nil {
			gone = append(gone, a.node)
		}
		return v.count(a.node, a.value, a.err) != undecided
	})
	for i := range m.peers {
		if !v.answered[i] || v.errs[i] != nil {
			t.lease.unanswered(i, ttl)
		}
	}
	if err == nil {
		err = noAnswer(within)
	}
	verdict := v.close(err)
	if verdict != granted {
		return v, verdict
	}
	if !l.prolong(t, from, validity(atQuorum(sure, v.nodes), 0, factor)) {
		return nil, unknown
	}
	l.heal(t, ttl, gone, ph)
	return v, granted
}

// renew prolongs the key of ls if it holds ls's token. A key of another type is none of ours.
func (p *peer) renew(ctx context.Context, ls *lease, ttl time.Duration) (bool, error) {
	v, err := p.run(ctx, renewScript, false, []string{ls.key}, ls.token, milliseconds(ttl))
	if isWrongType(err) {
		return false, nil
	}
	return v == int64(1), err
}

// heal puts a lease that the majority has just confirmed back on the nodes that do not have it, such as one
// that was restarted empty; also on those that say so only now.
func (l *Lock) heal(t *term, ttl time.Duration, gone []int, ph *phase[bool]) {
	for _, i := range gone {
		l.m.spawn(func() { l.healOn(l.m.peers[i], t, ttl) })
	}
	if ph.nodes == 0 {
		return
	}
	l.m.spawn(func() {
		_ = ph.collect(l.m.ctx, ph.bound, func(a answer[bool]) bool {
			if a.err == nil && !a.value {
				l.healOn(l.m.peers[a.node], t, ttl)
			}
			return false
		})
	})
}

func (l *Lock) healOn(p *peer, t *term, ttl time.Duration) {
	l.mu.Lock() // so that whoever ends the term sees that this was sent
	ok := t.state == held && t.lease.creates(p.index, ttl)
	l.mu.Unlock()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(l.m.ctx, p.bound)
	defer cancel()
	put, err := p.setNX(ctx, l.key, t.value, ttl)
	t.lease.created(p.index, err)
	if put && l.byAgreement() {
		_, _ = l.agreeOn(ctx, p, t) // it has lost the counter as well
	}
	l.m.cfg.Logger.V(1).Info("Node had lost the lease", "key", l.key, "node", p.index, "restored", put)
}

// lose ends t as lost, tells so at once, and removes what is left of it on the nodes.
func (l *Lock) lose(ctx context.Context, t *term, v *votes) error {
	if l.end(t, lost) {
		l.retreat(ctx, t.lease, v)
	}
	return v.error("extend", l.key, l.stateOf(t).cause())
}

// stillHeld reports a renewal of unknown fate, unless the lease is over by now.
func (l *Lock) stillHeld(t *term, v *votes) error {
	if s := l.stateOf(t); s != held {
		return v.error("extend", l.key, s.cause())
	}
	return v.error("extend", l.key, ErrInconclusive)
}

// age returns the time since the lease was acquired or last renewed.
func (l *Lock) age(t *term) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.from.Elapsed()
}

// pause is the time between two attempts at a renewal.
func (l *Lock) pause() time.Duration {
	return jittered(min(l.m.cfg.RetryDelay, l.opts.expiry/50))
}
