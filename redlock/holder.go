package redlock

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
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
		h, held := s.holder()
		return h, held, nil
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
	return reading{value, ttlOf(ms)}, nil
}

// TTL returns for how long a majority of the nodes will have something at key if it is not renewed; 0 if they do not
// have it. It is the cheapest look at a lease, one PTTL on every node, and cannot tell who holds it. With
// too few answers it returns a *QuorumError that is ErrInconclusive.
func (m *Manager) TTL(ctx context.Context, key string) (time.Duration, error) {
	if key == "" {
		return 0, invalid("key", `""`, "a lease needs a name")
	}
	if err := m.usable(ctx); err != nil {
		return 0, failed("read", key, err)
	}
	v := m.newVotes()
	var left []time.Duration
	ph := ask(m, ctx, func(ctx context.Context, p *peer) (time.Duration, error) { return p.ttl(ctx, key) })
	err := ph.collect(ctx, m.cfg.OperationTimeout, func(a answer[time.Duration]) bool {
		if a.err == nil && a.value > 0 {
			left = append(left, a.value)
		}
		return v.count(a.node, a.value > 0, a.err) != undecided
	})
	if err != nil {
		return 0, failed("read", key, err)
	}
	if v.close(noAnswer(m.cfg.OperationTimeout)) == unknown {
		return 0, v.error("read", key, ErrInconclusive)
	}
	return atQuorum(left, v.nodes), nil
}

func (p *peer) ttl(ctx context.Context, key string) (time.Duration, error) {
	node, ok := p.node.(processor)
	if !ok {
		r, err := p.read(ctx, key)
		return r.ttl, err
	}
	leave, err := p.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	cmd := redis.NewIntCmd(ctx, "PTTL", key)
	_ = node.Process(ctx, cmd)
	ms, err := cmd.Result()
	return ttlOf(ms), err
}

// ttlOf turns what PTTL says into a duration: 0 for no key, MaxTTL for a key that does not expire.
func ttlOf(ms int64) time.Duration {
	switch ms {
	case -2:
		return 0
	case -1:
		return MaxTTL
	default:
		return max(time.Duration(ms)*time.Millisecond, 1)
	}
}

// LastToken returns the highest fencing token that was drawn from the counter at counterKey, or with a Redlock Manager
// agreed by a majority of the nodes; 0 if none ever was. An agreement that failed may count as well.
func (m *Manager) LastToken(ctx context.Context, counterKey string) (uint64, error) {
	if counterKey == "" {
		return 0, invalid("counterKey", `""`, "the counter needs a key")
	}
	if err := m.usable(ctx); err != nil {
		return 0, failed("read", counterKey, err)
	}
	v := m.newVotes()
	var last uint64
	ph := ask(m, ctx, func(ctx context.Context, p *peer) (uint64, error) { return p.counter(ctx, counterKey) })
	err := ph.collect(ctx, m.cfg.OperationTimeout, func(a answer[uint64]) bool {
		last = max(last, a.value)
		return v.count(a.node, true, a.err) != undecided
	})
	if err != nil {
		return 0, failed("read", counterKey, err)
	}
	if v.close(noAnswer(m.cfg.OperationTimeout)) != granted {
		return 0, v.error("read", counterKey, ErrInconclusive)
	}
	return last, nil
}

func (p *peer) counter(ctx context.Context, key string) (uint64, error) {
	r, err := p.read(ctx, key)
	if err != nil || r.ttl == 0 {
		return 0, err
	}
	last, err := strconv.ParseUint(r.value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the counter holds no whole number: %w", err)
	}
	return last, nil
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

// holder returns the one of the token that most nodes show. While the fencing token is not agreed there is none: when it
// is, one node of any majority has it.
func (s *sight) holder() (h Holder, held bool) {
	rs := s.readings[s.most]
	ttls := make([]time.Duration, len(rs))
	for i, r := range rs {
		ttls[i] = r.ttl
		if !isPending(r.value) {
			h.FencingToken, h.Metadata = decodeValue(r.value)
			held = true
		}
	}
	h.TTL, h.Nodes = atQuorum(ttls, s.nodes), len(rs)
	if !held {
		return Holder{}, false
	}
	return h, true
}
