package redlock

import (
	"context"
	"math"
	"time"
)

// Holder is what a majority of the nodes knows about who holds a lease.
type Holder struct {
	// Metadata is what the holder gave to WithMetadata.
	Metadata string

	// FencingToken is the token of the acquisition, 0 without fencing.
	FencingToken uint64

	// TTL is the time left until the lease ends by itself, if it is not renewed; MaxTTL
	// for a key without expiry, which is no lease of this package.
	TTL time.Duration

	// Nodes is how many nodes were seen to hold the lease; at least a majority.
	Nodes int
}

// MaxTTL is the Holder.TTL of a key that does not expire.
const MaxTTL = time.Duration(math.MaxInt64)

// Holder tells who holds the lease at key. It reports held only if a majority of the nodes shows one and
// the same acquisition. With too few answers it returns a *QuorumError that is ErrInconclusive.
func (m *Manager) Holder(ctx context.Context, key string) (h Holder, held bool, err error) {
	if key == "" {
		return Holder{}, false, invalid("key", `""`, "a lease needs a name")
	}
	if err := m.usable(ctx); err != nil {
		return Holder{}, false, failed("read", key, err)
	}
	s := m.newSight()
	ph := ask(m, ctx, func(ctx context.Context, p *peer) (reading, error) { return p.read(ctx, key) })
	err = ph.collect(ctx, m.cfg.OperationTimeout, func(a answer[reading]) bool {
		return s.take(a) != undecided
	})
	if err != nil {
		return Holder{}, false, failed("read", key, err)
	}
	switch s.close(noAnswer(m.cfg.OperationTimeout)) {
	case granted:
		return s.holder(), true, nil
	case refused:
		return Holder{}, false, nil
	default:
		return Holder{}, false, s.error("read", key, ErrInconclusive)
	}
}

// reading is what stands at the key of a lease on one node.
type reading struct {
	value string
	ttl   time.Duration
}

func (p *peer) read(ctx context.Context, key string) (reading, error) {
	v, err := p.run(ctx, readScript, false, []string{key})
	if err != nil {
		return reading{}, err
	}
	pair, ok := v.([]any)
	if !ok || len(pair) != 2 {
		return reading{}, failed("read", key, errUnexpectedReply)
	}
	value, _ := pair[0].(string)
	ms, _ := pair[1].(int64)
	switch ms {
	case -2:
		return reading{}, nil
	case -1:
		return reading{value, MaxTTL}, nil
	default:
		return reading{value, max(time.Duration(ms)*time.Millisecond, 1)}, nil
	}
}

// sight puts the readings of the nodes together.
type sight struct {
	*votes
	readings map[string][]reading // by token
	most     string               // the token that most nodes show
}

func (m *Manager) newSight() *sight {
	return &sight{votes: m.newVotes(), readings: make(map[string][]reading)}
}

// take adds a node's reading. The majority's holder is known when a majority shows one token; that there is
// none, when no token can reach a majority any more.
func (s *sight) take(a answer[reading]) verdict {
	s.answered[a.node] = true
	switch {
	case a.err != nil:
		s.failed++
		s.errs[a.node] = a.err
	case a.value.ttl == 0: // free
		s.refused++
	default:
		token := tokenOf(a.value.value)
		s.readings[token] = append(s.readings[token], a.value)
		if len(s.readings[token]) > len(s.readings[s.most]) {
			s.most = token
		}
	}
	return s.verdict()
}

// close is votes.close for the verdict of a sight.
func (s *sight) close(why error) verdict {
	if s.verdict() == undecided {
		s.closeAll(why)
	}
	return s.verdict()
}

func (s *sight) verdict() verdict {
	t := s.tally
	t.granted = len(s.readings[s.most])
	for token, rs := range s.readings {
		if token != s.most {
			t.refused += len(rs) // they do not show the token in question
		}
	}
	s.granted = t.granted
	return t.verdict()
}

func (s *sight) holder() Holder {
	rs := s.readings[s.most]
	ttls := make([]time.Duration, len(rs))
	for i, r := range rs {
		ttls[i] = r.ttl
	}
	fence, metadata := decodeValue(rs[0].value)
	return Holder{
		Metadata:     metadata,
		FencingToken: fence,
		TTL:          atQuorum(ttls, s.nodes),
		Nodes:        len(rs),
	}
}
