package resourcelock

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/uuid"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

// Config describes one candidate of one election. Manager and Name are required.
type Config struct {
	// Manager is where the lease lives. Any number of locks may share one.
	Manager *redlock.Manager

	// Namespace and Name identify the election; candidates of the election package with the same compete as well.
	// The keys in Redis are {namespace/name}:lease and {namespace/name}:epoch. The namespace may be empty.
	Namespace, Name string

	// Identity is what others see of this candidate. Default: hostname_uuid.
	Identity string

	// LeaseDuration is the exact TTL of the lease. Default: what the elector asks for, which client-go cuts to
	// whole seconds; for others set it to the same value as LeaderElectionConfig.LeaseDuration.
	LeaseDuration time.Duration

	// EventRecorder, if set, gets the events that client-go records on a Lease object.
	EventRecorder rl.EventRecorder

	// Logger gets changes of terms (level 0) and details (level 1), with the keys "lease" and "identity". Default: silent.
	Logger logr.Logger

	// QuorumFencing gives terms on a Redlock manager an epoch, which a majority of the nodes agrees on; see
	// redlock.WithQuorumFencing for what it costs and needs. All candidates should have the same. Without it the epoch is 0
	// there. On a single Redis there always is one.
	QuorumFencing bool

	// FenceFloor returns a number that the epoch of the next term must exceed, such as the highest epoch that
	// the protected resource has accepted. It is asked before every attempt to take the lease; an error
	// fails the attempt. The highest epoch that this lock has ever seen is always part of the floor. On a
	// Redlock manager it needs QuorumFencing.
	FenceFloor func(context.Context) (uint64, error)

	// FastHandover lets Get, asked again by a follower about a leader that it knows, wait for that leader's
	// release or end instead of answering the same again: an unmodified LeaderElector then takes over within
	// milliseconds instead of at its next RetryPeriod. Not for a lock inside a MultiLock. After a change of leader
	// an elector looks again one RetryPeriod later, and waits from then on; the election package knows no such gap.
	FastHandover bool
}

// New returns a lock. It does no I/O.
func New(cfg Config) (*Lock, error) {
	keys, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("resourcelock: Config.%w", err)
	}
	if cfg.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("resourcelock: Config.Identity is empty, and there is no hostname to make one of: %w", err)
		}
		cfg.Identity = host + "_" + string(uuid.NewUUID())
	}
	l := &Lock{cfg: cfg, keys: keys, transitions: -1, changed: make(chan struct{})}
	l.contexts = make(map[*context.CancelCauseFunc]struct{})
	l.log = cfg.Logger.WithValues("lease", l.Describe(), "identity", cfg.Identity)
	return l, nil
}

func (c Config) check() (record.Keys, error) {
	if c.Manager == nil {
		return record.Keys{}, fmt.Errorf("Manager is nil: the lease needs a Redis to live in")
	}
	keys, err := record.NewKeys(c.Namespace, c.Name)
	if err != nil {
		return record.Keys{}, err
	}
	if n := len(record.Encode(rl.LeaderElectionRecord{HolderIdentity: c.Identity})); n > redlock.MaxMetadata-256 {
		return record.Keys{}, fmt.Errorf("Identity is %d bytes long: with it the record would exceed %d bytes", len(c.Identity), redlock.MaxMetadata)
	}
	if c.LeaseDuration != 0 {
		if err := c.checkTTL(c.LeaseDuration); err != nil {
			return record.Keys{}, fmt.Errorf("LeaseDuration is %v: %w", c.LeaseDuration, err)
		}
	}
	if c.FenceFloor != nil && !c.hasEpochs() {
		return record.Keys{}, fmt.Errorf("FenceFloor is set: a Redlock manager has epochs, and a floor for them, only with QuorumFencing")
	}
	return keys, nil
}

// hasEpochs reports whether terms have epochs.
func (c Config) hasEpochs() bool { return c.QuorumFencing || c.Manager.Mode() == redlock.ModeSingle }

func (c Config) checkTTL(ttl time.Duration) error {
	if ttl < time.Millisecond || ttl > redlock.MaxExpiry {
		return fmt.Errorf("a lease lasts from 1ms to %v", redlock.MaxExpiry)
	}
	if c.Manager.Validity(ttl) <= 0 {
		return fmt.Errorf("clock drift leaves nothing of it")
	}
	return nil
}

// ttl returns the TTL to ask for, given what the elector wants.
func (c Config) ttl(want rl.LeaderElectionRecord) (time.Duration, error) {
	if c.LeaseDuration != 0 {
		return c.LeaseDuration, nil
	}
	if want.LeaseDurationSeconds <= 0 {
		return 0, fmt.Errorf("LeaseDurationSeconds is %d: client-go cuts LeaseDuration to whole seconds; "+
			"set resourcelock.Config.LeaseDuration to the exact duration", want.LeaseDurationSeconds)
	}
	ttl := time.Duration(want.LeaseDurationSeconds) * time.Second
	if err := c.checkTTL(ttl); err != nil {
		return 0, fmt.Errorf("LeaseDurationSeconds is %d: %w", want.LeaseDurationSeconds, err)
	}
	return ttl, nil
}
