package redlock

import (
	"context"
	"fmt"
	"time"
)

// MaxMetadata is the largest size of WithMetadata, in bytes.
const MaxMetadata = 64 << 10

// LockOption sets how one Lock behaves. A bad value is reported by the first TryLock or Lock.
type LockOption func(*lockOptions)

type lockOptions struct {
	expiry        time.Duration
	attempts      int
	renewEvery    time.Duration
	renewDeadline time.Duration
	counterKey    string
	fenceFloor    func(context.Context) (uint64, error)
	metadata      string

	autoRenew, deadline, fenced, agreed bool // given
}

// WithExpiry sets the TTL of this lock's leases instead of Config.Expiry.
func WithExpiry(d time.Duration) LockOption {
	return func(o *lockOptions) { o.expiry = d }
}

// WithAttempts sets how often TryLock tries instead of Config.Attempts.
func WithAttempts(n int) LockOption {
	return func(o *lockOptions) { o.attempts = n }
}

// WithAutoRenew renews the lease in the background, every interval, from its acquisition until
// Unlock or loss. The interval must leave room for more than one attempt before the lease ends:
// a third of the TTL is usual.
//
// A renewal that too few nodes answer is tried again until the end of the lease's validity, or
// until WithRenewDeadline, before it counts as failed.
func WithAutoRenew(interval time.Duration) LockOption {
	return func(o *lockOptions) { o.renewEvery, o.autoRenew = interval, true }
}

// WithRenewDeadline lets a renewal, automatic or by Extend, that too few nodes answered be tried
// again until d after the last good one. Then the lease is lost. The deadline must lie within
// the lease's validity.
func WithRenewDeadline(d time.Duration) LockOption {
	return func(o *lockOptions) { o.renewDeadline, o.deadline = d, true }
}

// WithFencingToken has every acquisition draw a token, greater than any before, from the atomic
// counter at counterKey, which is never deleted. On a Redis Cluster both keys need the same
// hash tag. Redlock managers, whose nodes have no counter in common, answer ErrFencingUnsupported:
// see WithQuorumFencing.
func WithFencingToken(counterKey string) LockOption {
	return func(o *lockOptions) { o.counterKey, o.fenced = counterKey, true }
}

// WithQuorumFencing has every acquisition agree with a majority of the nodes on a fencing token that is greater than
// any before: a second round of commands, after which a majority has the token stored at counterKey. Tokens grow in
// the order of the leases, whatever the clocks do, as long as the nodes keep what they have acknowledged
// (appendfsync always; a node that has lost its data must not come back): two majorities have a node in common, and it knows
// the greater token. An acquisition that fails on the way may leave a gap. With a single Redis it is WithFencingToken.
func WithQuorumFencing(counterKey string) LockOption {
	return func(o *lockOptions) { o.counterKey, o.agreed = counterKey, true }
}

// WithFenceFloor asks floor before every acquisition attempt for a number that the fencing token
// must exceed, such as the highest one that the protected resource has accepted: then a counter
// that Redis has lost cannot issue an old token again. An error of floor fails the acquisition.
func WithFenceFloor(floor func(ctx context.Context) (uint64, error)) LockOption {
	return func(o *lockOptions) { o.fenceFloor = floor }
}

// WithMetadata stores s with the lease, for Manager.Holder to read. At most MaxMetadata bytes.
func WithMetadata(s string) LockOption {
	return func(o *lockOptions) { o.metadata = s }
}

// bare reports whether the value is the token alone.
func (o *lockOptions) bare() bool { return o.counterKey == "" && o.metadata == "" }

func (m *Manager) checkOptions(key string, o *lockOptions) error {
	if key == "" {
		return invalid("key", `""`, "a lease needs a name")
	}
	if err := checkTTL("WithExpiry", o.expiry, m.cfg.DriftFactor); err != nil {
		return err
	}
	if o.attempts < 1 {
		return invalid("WithAttempts", o.attempts, "TryLock tries at least once")
	}
	usable := validity(o.expiry, 0, m.cfg.DriftFactor)
	if o.autoRenew && (o.renewEvery <= 0 || o.renewEvery >= usable) {
		return invalid("WithAutoRenew", o.renewEvery, fmt.Sprintf(
			"the interval must be positive and below the validity of the lease, %v of %v", usable, o.expiry))
	}
	if o.deadline && (o.renewDeadline <= 0 || o.renewDeadline > usable) {
		return invalid("WithRenewDeadline", o.renewDeadline, fmt.Sprintf(
			"the deadline must be positive and within the validity of the lease, %v of %v", usable, o.expiry))
	}
	if o.deadline && o.autoRenew && o.renewDeadline <= o.renewEvery {
		return invalid("WithRenewDeadline", o.renewDeadline, fmt.Sprintf(
			"the deadline must be longer than the renewal interval, %v", o.renewEvery))
	}
	if len(o.metadata) > MaxMetadata {
		return invalid("WithMetadata", fmt.Sprintf("%d bytes", len(o.metadata)), fmt.Sprintf(
			"at most %d bytes are stored with a lease", MaxMetadata))
	}
	return m.checkFencing(key, o)
}

func (m *Manager) checkFencing(key string, o *lockOptions) error {
	option := "WithFencingToken"
	if o.agreed {
		option = "WithQuorumFencing"
	}
	fenced := o.fenced || o.agreed
	switch {
	case o.fenced && m.Mode() == ModeRedlock:
		return failed("acquire", key, ErrFencingUnsupported)
	case o.fenced && o.agreed:
		return invalid(option, fmt.Sprintf("%q", o.counterKey), "WithFencingToken is given as well: a lease has one fencing token")
	case fenced && o.counterKey == "":
		return invalid(option, `""`, "the counter needs a key")
	case fenced && o.counterKey == key:
		return invalid(option, fmt.Sprintf("%q", key), "the counter needs another key than the lease")
	case o.fenceFloor != nil && !fenced:
		return invalid("WithFenceFloor", "given alone", "it needs WithFencingToken or WithQuorumFencing")
	}
	return nil
}
