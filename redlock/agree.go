package redlock

import (
	"context"
	"strconv"
)

// byAgreement reports whether the fencing token is agreed by a majority, and not drawn from one counter.
func (l *Lock) byAgreement() bool { return l.opts.agreed && l.m.Mode() == ModeRedlock }

// agree makes the successor of the highest fencing token that was heard of the lease's: every node that has granted
// the lease, or grants it only now, stores it if the lease is still there. Stored by a majority it is the lease's.
//
// Why tokens then grow in the order of leases: the majority that stored this one and the majority that grants any
// other lease have a node in common. If it granted the other lease after it had stored, the other token exceeds ours, as it
// exceeds what the node answered. If it granted the other lease before, our lease was not there any more to store for.
// So a node whose grant the RestartGuard does not count may store: that is a promise, and no testimony.
func (l *Lock) agree(ctx context.Context, t *term, grants []answer[grant]) (*votes, error) {
	m, ls := l.m, t.lease
	t.fence++
	v := m.newVotes()
	ph := ask(m, ctx, func(ctx context.Context, p *peer) (bool, error) {
		select {
		case <-ls.ended(p.index):
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if g := grants[p.index]; g.err != nil || !g.value.ok {
			return false, g.err
		}
		return l.agreeOn(ctx, p, t)
	})
	err := ph.collect(ctx, t.left(), func(a answer[bool]) bool {
		return v.count(a.node, a.value, a.err) != undecided
	})
	v.close(noAnswer(m.cfg.OperationTimeout))
	return v, err
}

// agreeOn has one node store the fencing token of t. Repeated by the client, it does no harm.
func (l *Lock) agreeOn(ctx context.Context, p *peer, t *term) (bool, error) {
	v, err := p.run(ctx, agreeScript, false, []string{l.key, l.opts.counterKey},
		t.lease.token, strconv.FormatUint(t.fence, 10), l.opts.metadata)
	return v == int64(1), err
}
