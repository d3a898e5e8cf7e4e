package redlock

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

// Config tunes a Manager. The zero value of every field means its default.
type Config struct {
	// Expiry is the TTL of a lease in Redis, and what automatic renewal renews it to.
	// At least 1ms; Redis counts in whole milliseconds. Default 30s.
	Expiry time.Duration

	// Attempts is how often TryLock tries. Default 3.
	Attempts int

	// RetryDelay is the time between two attempts; up to half of it is added at random.
	// Default 200ms.
	RetryDelay time.Duration

	// DriftFactor is the share of the TTL that is reserved for clocks of different
	// speed; another 2ms are for the precision of Redis. Default 0.01.
	DriftFactor float64

	// OperationTimeout bounds one parallel phase over the nodes, whatever the timeouts of
	// the clients are. Default: a fifth of Expiry, at most 500ms.
	OperationTimeout time.Duration

	// RestartGuard has an acquisition not count the grant of a node that has been up for less than the lease's TTL. Such a
	// node may have restarted without its data and have forgotten that it granted the lease to somebody else; after the
	// TTL whatever it has forgotten is over. Lock waits for that; TryLock fails if there is no majority without the node.
	// Renewals do not ask.
	//
	// It costs one more round trip, to the nodes that grant, which must let INFO be asked from a script. It sees that a server
	// process is new, not a FLUSHALL and not a failover to a replica, and it trusts that all who contend use the
	// same TTL and that Extend is given no longer one. A lost counter stays lost, see WithQuorumFencing.
	// Default: off; nodes that keep what they acknowledge (appendfsync always) do not need it.
	RestartGuard bool

	// Logger gets losses (level 0) and what explains them (level 1 and up). Tokens are
	// never logged. Default: silent.
	Logger logr.Logger
}

// MaxExpiry is the longest TTL that is accepted.
const MaxExpiry = 100 * 365 * 24 * time.Hour

func (c Config) withDefaults() Config {
	if c.Expiry == 0 {
		c.Expiry = 30 * time.Second
	}
	if c.Attempts == 0 {
		c.Attempts = 3
	}
	if c.RetryDelay == 0 {
		c.RetryDelay = 200 * time.Millisecond
	}
	if c.DriftFactor == 0 {
		c.DriftFactor = 0.01
	}
	if c.OperationTimeout == 0 {
		c.OperationTimeout = min(c.Expiry/5, 500*time.Millisecond)
	}
	return c
}

func (c Config) validate() error {
	if c.Attempts < 0 {
		return invalid("Config.Attempts", c.Attempts, "it must not be negative")
	}
	if c.RetryDelay < 0 {
		return invalid("Config.RetryDelay", c.RetryDelay, "it must not be negative")
	}
	if c.DriftFactor < 0 || c.DriftFactor >= 1 || math.IsNaN(c.DriftFactor) {
		return invalid("Config.DriftFactor", c.DriftFactor, "it must be a share of the TTL, from 0 to below 1")
	}
	if err := checkTTL("Config.Expiry", c.Expiry, c.DriftFactor); err != nil {
		return err
	}
	if c.OperationTimeout < 0 {
		return invalid("Config.OperationTimeout", c.OperationTimeout, "it must not be negative")
	}
	return nil
}

// checkTTL refuses a TTL that Redis cannot keep or that leaves nothing to rely on.
func checkTTL(field string, ttl time.Duration, driftFactor float64) error {
	if ttl < time.Millisecond {
		return invalid(field, ttl, "a lease lasts at least 1ms")
	}
	if ttl > MaxExpiry {
		return invalid(field, ttl, fmt.Sprintf("a lease lasts at most %v", MaxExpiry))
	}
	if d := drift(ttl, driftFactor); d >= ttl {
		return invalid(field, ttl, fmt.Sprintf("clock drift of %v (DriftFactor %v, plus 2ms) leaves nothing of it", d, driftFactor))
	}
	return nil
}

// Mode is the algorithm of a Manager.
type Mode int

const (
	ModeSingle  Mode = iota // one Redis authority
	ModeRedlock             // a majority of independent primaries
)

func (m Mode) String() string {
	if m == ModeRedlock {
		return "Redlock"
	}
	return "single"
}

// Manager makes Locks over one set of Redis nodes. It is safe for concurrent use.
type Manager struct {
	cfg    Config
	peers  []*peer
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	fenced atomic.Bool // a Lock with fencing tokens was made

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // every goroutine of the manager and its locks
}

// NewSingle returns a Manager over one logical Redis: a server, a Sentinel deployment, or a Cluster.
// At most one Config may be given; its zero value is the default.
func NewSingle(node Node, cfg ...Config) (*Manager, error) {
	c, err := oneConfig(cfg)
	if err != nil {
		return nil, err
	}
	return newManager(c, []Node{node})
}

// NewRedlock returns a Manager over independent Redis primaries, an odd number of at least three.
// Replicas of one primary, addresses of one server, and shards of one Cluster are not independent.
// At most one Config may be given; its zero value is the default.
func NewRedlock(nodes []Node, cfg ...Config) (*Manager, error) {
	c, err := oneConfig(cfg)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 1 {
		return nil, invalid("nodes", "1 node", "Redlock needs an odd number of at least three; for one there is NewSingle")
	}
	return newManager(c, nodes)
}

// New returns a Manager with the default Config: over one node a single one, over three or more Redlock.
func New(nodes ...Node) (*Manager, error) { return newManager(Config{}, nodes) }

// NewWithConfig is New with a Config.
func NewWithConfig(cfg Config, nodes ...Node) (*Manager, error) { return newManager(cfg, nodes) }

func oneConfig(cfg []Config) (Config, error) {
	switch len(cfg) {
	case 0:
		return Config{}, nil
	case 1:
		return cfg[0], nil
	default:
		return Config{}, invalid("cfg", fmt.Sprintf("%d values", len(cfg)), "give one Config, or none")
	}
}

func newManager(cfg Config, nodes []Node) (*Manager, error) {
	if err := checkNodes(nodes); err != nil {
		return nil, err
	}
	if n := len(nodes); n%2 == 0 {
		return nil, invalid("nodes", fmt.Sprintf("%d nodes", n), "Redlock needs an odd number of at least three: "+
			"one more node than an odd number makes nothing safer")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	for i, n := range nodes {
		m.peers = append(m.peers, newPeer(i, n, cfg.OperationTimeout))
	}
	return m, nil
}

// Mode tells the algorithm in use.
func (m *Manager) Mode() Mode {
	if len(m.peers) == 1 {
		return ModeSingle
	}
	return ModeRedlock
}

// Quorum returns how many nodes must agree.
func (m *Manager) Quorum() int { return quorumOf(len(m.peers)) }

// Validity returns how long a lease of the given TTL can be relied on, from the moment before it was asked for:
// the TTL less the clock drift that is allowed for. It is negative for a TTL that is too short.
func (m *Manager) Validity(ttl time.Duration) time.Duration {
	return validity(ttl, 0, m.cfg.DriftFactor)
}

// NewLock returns a handle for leases at key. It does no I/O; a bad key or option is reported
// by the first TryLock or Lock. A handle holds at most one lease at a time.
func (m *Manager) NewLock(key string, opts ...LockOption) *Lock {
	l := &Lock{m: m, key: key, turn: make(chan struct{}, 1), term: &term{lost: make(chan struct{})}}
	l.opts.expiry, l.opts.attempts = m.cfg.Expiry, m.cfg.Attempts
	for i, o := range opts {
		if o == nil {
			l.invalid = invalid(fmt.Sprintf("opts[%d]", i), "nil", "leave it out")
			return l
		}
		o(&l.opts)
	}
	l.invalid = m.checkOptions(key, &l.opts)
	if l.opts.counterKey != "" {
		m.fenced.Store(true)
	}
	return l
}

// Close ends the manager's background work: renewals, waiting Locks, and the undoing of what
// unreachable nodes may still hold. Leases that are held are left to expire; their Locks tell the
// loss in time. The clients stay open: they belong to the caller. Close may be called again.
//
// It waits for commands that are under way, for twice the OperationTimeout at most, and returns an error if a client
// is then still waiting for a node.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.work.Wait()
	}()
	timer := time.NewTimer(2 * m.cfg.OperationTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return fmt.Errorf("redlock: closing: after %v a client is still waiting for a node that does not answer", 2*m.cfg.OperationTimeout)
	}
}

// usable returns the reason why an operation need not begin, if there is one.
func (m *Manager) usable(ctx context.Context) error {
	if m.ctx.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}

// spawn runs f in a goroutine that Close waits for. It reports false, and does
// nothing, once the manager is closed.
func (m *Manager) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.work.Go(f)
	return true
}
