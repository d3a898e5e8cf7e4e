package redlock

import (
	"context"
	"sync"
	"time"
)

// undo releases l on every node. It answers with what each node said; nodes that could not be
// asked, or where something of l may still turn up, are left to their settlers.
// The caller's context plays no part: what was sent has to be undone in any case.
func (m *Manager) undo(ctx context.Context, l *lease) *phase[bool] {
	return ask(m, context.WithoutCancel(ctx), func(ctx context.Context, p *peer) (bool, error) {
		deleted, clean, err := p.release(ctx, l)
		lostReply := err != nil && !notExecuted(err)
		if lostReply {
			deleted, clean, err = p.release(ctx, l)
		}
		if !clean {
			p.settler.add(m, l)
		}
		if !clean && err == nil { // the release has overtaken a write that is under way
			select {
			case <-l.ended(p.index):
				again, clean, _ := p.release(ctx, l)
				deleted = deleted || again
				if clean {
					p.settler.note(l, true)
				}
			case <-ctx.Done():
			}
		}
		// Gone at the second look: then it was the first that deleted it.
		return deleted || lostReply && err == nil, err
	})
}

// release deletes the key of l if it holds l's token, and reports whether nothing of l can turn up any more. It is sent at
// most once: repeated by the client, a release whose reply was lost would seem to have found nothing.
func (p *peer) release(ctx context.Context, l *lease) (deleted, clean bool, err error) {
	open := l.open(p.index)
	v, err := p.run(ctx, releaseScript, true, []string{l.key}, l.token, l.channel())
	deleted = v == int64(1)
	// Where the client may repeat the write, what was deleted need not have been its last copy.
	sure := deleted && (!open || p.sendsOnce())
	return deleted, l.settled(p.index, open, sure, err), err
}

// settler undoes, in the background, what could not be undone at once on its node. A SET may
// reach a server long after its sender has given up; the settler asks again until the
// node has confirmed, or until the key would have expired by itself.
// Its one goroutine lives for as long as there is something to settle.
type settler struct {
	peer *peer

	mu      sync.Mutex
	debts   map[*lease]*debt
	working bool // its goroutine is there
}

// debt is a lease that may still turn up on the node.
type debt struct {
	wait time.Duration // until it is looked for again
	left time.Duration // of that
}

// pause is the time between two looks at the node.
func (s *settler) pause() time.Duration { return max(s.peer.bound/2, time.Millisecond) }

func (s *settler) add(m *Manager, l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.debts == nil {
		s.debts = make(map[*lease]*debt)
	}
	if _, known := s.debts[l]; known {
		return
	}
	s.debts[l] = &debt{wait: s.pause(), left: s.pause()}
	if !s.working {
		s.working = m.spawn(func() { s.work(m) })
	}
	if !s.working {
		clear(s.debts) // closed: the keys are left to expire
	}
}

// owes reports whether a lease of ours for key may still be on the node.
func (s *settler) owes(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.debts {
		if l.key == key && l.maybeOn(s.peer.index) {
			return true
		}
	}
	return false
}

func (s *settler) work(m *Manager) {
	for sleep(m.ctx, s.pause()) == nil {
		for _, l := range s.due() {
			if !s.settle(m, l) {
				break // the node does not answer: the others would only wait as well
			}
		}
		if s.done() {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working = false
	clear(s.debts)
}

// due returns what is to be looked for now. What has expired by itself is looked for once more, and dropped: a SET that
// arrived after the last look would stand there for a TTL of its own.
func (s *settler) due() (now []*lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l, d := range s.debts {
		if l.expired(s.peer.index) {
			delete(s.debts, l)
			now = append(now, l)
		} else if d.left -= s.pause(); d.left <= 0 {
			now = append(now, l)
		}
	}
	return now
}

// settle asks the node once, and reports whether it answered within the OperationTimeout.
func (s *settler) settle(m *Manager, l *lease) bool {
	ctx, cancel := context.WithTimeout(m.ctx, s.peer.bound)
	defer cancel()
	answered := make(chan bool, 1)
	m.spawn(func() { // a client may wait for longer than we do
		_, clean, err := s.peer.release(ctx, l)
		if ok := err == nil || isReply(err); ok {
			s.note(l, clean)
			answered <- ok
		}
	})
	select {
	case ok := <-answered:
		return ok
	case <-ctx.Done():
		return false
	}
}

// note strikes out a debt, or puts it off: a node that answers has less and less to surprise us with.
func (s *settler) note(l *lease, clean bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if clean {
		delete(s.debts, l)
	} else if d := s.debts[l]; d != nil {
		d.wait *= 2
		d.left = d.wait
	}
}

// done reports whether nothing is left; then the goroutine ends, and the next debt starts another.
func (s *settler) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working = len(s.debts) > 0
	return !s.working
}

// sleep waits for d, and returns ctx's error if that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
