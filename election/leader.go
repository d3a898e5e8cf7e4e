package election

import (
	"context"
	"time"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

// Leader is a term of leadership as others see it. The zero Leader is nobody.
type Leader struct {
	// Identity is what the leader calls itself.
	Identity string

	// Epoch is the epoch of its term; 0 with a Redlock Manager, unless the leader has Config.QuorumFencing.
	Epoch uint64

	// Since is when the term began, by the leader's clock, in whole seconds.
	Since time.Time

	// Transitions is how many terms there were before; without epochs, as far as the leader knew.
	Transitions int
}

// leaderOf reads what a leader has stored with its lease.
func leaderOf(h redlock.Holder) Leader {
	r := record.Decode(h, h.TTL)
	return Leader{
		Identity:    r.HolderIdentity,
		Epoch:       h.FencingToken,
		Since:       r.AcquireTime.Time,
		Transitions: r.LeaderTransitions,
	}
}

func (l Leader) sameTerm(other Leader) bool {
	return l.Identity == other.Identity && l.Epoch == other.Epoch &&
		l.Transitions == other.Transitions && l.Since.Unix() == other.Since.Unix()
}

// memory is what a candidate has seen of the election so far. Its fields are guarded by Elector.mu.
type memory struct {
	last    Leader // the latest term, whoever's
	vacant  bool   // it is over, or there was none
	highest uint64 // epoch of all
}

// follows notes a term, our own or another's.
func (e *Elector) follows(l Leader) {
	e.mu.Lock()
	before := e.memory.last
	e.memory.last, e.memory.vacant = l, false
	e.memory.highest = max(e.memory.highest, l.Epoch)
	e.mu.Unlock()
	if l.sameTerm(before) {
		return
	}
	if before.Identity != "" {
		e.metrics.transition()
	}
	e.logger.V(1).Info("New leader", "leader", l.Identity, "epoch", l.Epoch)
	e.herald.announce(l.Identity)
}

// vacate notes that nobody leads.
func (e *Elector) vacate() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory.vacant = true
}

// remembered returns what is known of the election.
func (e *Elector) remembered() memory {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.memory
}

// transitions is the count that the next term goes on from: -1 before the first.
func (e *Elector) transitions() int {
	if last := e.remembered().last; last.Identity != "" {
		return last.Transitions
	}
	return -1
}

// floor is what the next epoch must exceed: a Redis that has lost its counter begins again at one.
func (e *Elector) floor(ctx context.Context) (uint64, error) {
	highest := e.remembered().highest
	if e.cfg.FenceFloor == nil {
		return highest, nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.RenewDeadline)
	defer cancel()
	floor, err := e.cfg.FenceFloor(ctx)
	return max(floor, highest), err
}
