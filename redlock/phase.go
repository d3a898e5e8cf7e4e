package redlock

import (
	"context"
	"time"
)

// phase is one command on its way to all nodes at once.
type phase[T any] struct {
	nodes   int
	bound   time.Duration
	answers chan answer[T] // room for all: nobody waits for a reader
}

// answer is what one node said.
type answer[T any] struct {
	node  int
	value T
	err   error
}

// ask sends to every node at once and returns without waiting. Every call is bounded by the
// OperationTimeout and goes on when ctx ends: what became of it must be known.
func ask[T any](m *Manager, ctx context.Context, send func(context.Context, *peer) (T, error)) *phase[T] {
	return askFor(m, ctx, m.cfg.OperationTimeout, send)
}

// askFor is ask with another bound, for more than one command.
func askFor[T any](m *Manager, ctx context.Context, bound time.Duration, send func(context.Context, *peer) (T, error)) *phase[T] {
	ph := &phase[T]{
		nodes:   len(m.peers),
		bound:   bound,
		answers: make(chan answer[T], len(m.peers)),
	}
	ctx = context.WithoutCancel(ctx)
	for _, p := range m.peers {
		ok := m.spawn(func() {
			ctx, cancel := context.WithTimeout(ctx, ph.bound)
			defer cancel()
			v, err := send(ctx, p)
			ph.answers <- answer[T]{p.index, v, err}
		})
		if !ok {
			ph.answers <- answer[T]{node: p.index, err: ErrClosed}
		}
	}
	return ph
}

// collect hands over answers as they come until take has seen enough, all have answered,
// within is over, or ctx ends. It returns ctx's error in the last case only.
func (ph *phase[T]) collect(ctx context.Context, within time.Duration, take func(answer[T]) (enough bool)) error {
	timer := time.NewTimer(min(within, ph.bound))
	defer timer.Stop()
	for range ph.nodes {
		select {
		case a := <-ph.answers:
			ph.nodes--
			if take(a) {
				return nil
			}
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// votes are the answers of a phase in which every node says yes, no, or nothing.
type votes struct {
	tally
	answered []bool
	denied   []bool // by nodes that executed the command and said no
	errs     map[int]error
}

func (m *Manager) newVotes() *votes {
	return &votes{
		tally:    tally{nodes: len(m.peers)},
		answered: make([]bool, len(m.peers)),
		denied:   make([]bool, len(m.peers)),
		errs:     make(map[int]error),
	}
}

// count takes one answer and returns where that leaves the phase.
func (v *votes) count(node int, yes bool, err error) verdict {
	v.answered[node] = true
	switch {
	case err != nil:
		v.failed++
		v.errs[node] = err
	case yes:
		v.granted++
	default:
		v.refused++
		v.denied[node] = true
	}
	return v.verdict()
}

// recant turns a node's no into a failure: it turned out to mean something else.
func (v *votes) recant(node int, why error) {
	v.denied[node] = false
	v.refused--
	v.failed++
	v.errs[node] = why
}

// close ends a phase that is still undecided: who has not answered by now has failed.
func (v *votes) close(why error) verdict {
	if v.verdict() == undecided {
		v.closeAll(why)
	}
	return v.verdict()
}

// closeAll has everybody fail who has not answered.
func (v *votes) closeAll(why error) {
	for i, ok := range v.answered {
		if !ok {
			v.failed++
			v.errs[i] = why
		}
	}
}

// mayBeHeld reports whether others may see the lease that was asked for: whether a majority may have granted it, be it
// without an answer.
func (v *votes) mayBeHeld() bool {
	without := v.refused
	for _, err := range v.errs {
		if notExecuted(err) || isGuarded(err) {
			without++
		}
	}
	return v.nodes-without >= quorumOf(v.nodes)
}

// error reports the votes as the outcome of an operation.
func (v *votes) error(operation, key string, cause error) *QuorumError {
	return &QuorumError{
		Operation:  operation,
		Succeeded:  v.granted,
		Required:   quorumOf(v.nodes),
		NodeErrors: v.errs,
		key:        key,
		nodes:      v.nodes,
		refused:    v.refused,
		cause:      cause,
	}
}
