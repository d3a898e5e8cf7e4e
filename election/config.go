package election

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

// Config describes one candidate of one election. Manager, Name and two of the Callbacks are required;
// the zero value of every other field means its default.
type Config struct {
	// Manager is where the lease lives. Any number of elections may share one.
	Manager *redlock.Manager

	// Namespace and Name identify the election: candidates that give the same compete with each other, also with
	// those of the resourcelock package. The keys in Redis are {namespace/name}:lease and {namespace/name}:epoch.
	// The namespace may be empty.
	Namespace, Name string

	// Identity is what others see of this candidate. It need not be unique: a lease is told from another by its
	// token, never by this name. Default: hostname_uuid.
	Identity string

	// LeaseDuration is the TTL of the lease: a leader that vanished is replaced when it is over. Any duration
	// that Redis can keep, in whole milliseconds. Default 15s.
	LeaseDuration time.Duration

	// RenewDeadline is how long after the last good renewal a leader that gets no answer from Redis goes on trying
	// before it counts its lease as lost. It must be below LeaseDuration; the end of the lease's validity
	// (LeaseDuration less clock drift) cuts it short. Default 10s.
	RenewDeadline time.Duration

	// RetryPeriod is the time between two renewals, up to a quarter of it taken off at random; also between two
	// attempts while Redis is out of reach, and between two looks where releases cannot be heard. RenewDeadline
	// must exceed 1.2 times this. Default 2s.
	RetryPeriod time.Duration

	// Callbacks are client-go's own type. OnStartedLeading and OnStoppedLeading are required. See the package
	// comment for when each is called.
	Callbacks leaderelection.LeaderCallbacks

	// ReleaseOnCancel has the lease released when Run's context ends, once OnStartedLeading has returned:
	// another candidate leads within milliseconds. Without it the lease is left to expire, as in
	// client-go. Set it unless work goes on after OnStartedLeading has returned.
	ReleaseOnCancel bool

	// QuorumFencing gives terms with a Redlock Manager an epoch, which a majority of the nodes agrees on; see
	// redlock.WithQuorumFencing for what it costs and needs. All candidates should have the same. Without it the epoch is
	// 0 there. On a single Redis there always is one.
	QuorumFencing bool

	// FenceFloor returns a number that the epoch of the next term must exceed, such as the highest epoch that
	// the protected resource has accepted: then a Redis that has lost its data cannot issue an old epoch again.
	// It is asked before every attempt to take the lease, within RenewDeadline; an error fails the attempt.
	// The highest epoch that this candidate has ever seen is always part of the floor. With a Redlock Manager it
	// needs QuorumFencing.
	FenceFloor func(context.Context) (uint64, error)

	// Logger gets changes of leader and trouble (level 0), and details (level 1). Every line carries the keys
	// "lease" and "identity". Default: silent.
	Logger logr.Logger

	// Registerer, if set, has the metrics of this election for as long as Run runs. See the package comment
	// for their names. One registry takes any number of elections, but no election twice.
	Registerer prometheus.Registerer
}

const (
	defaultLeaseDuration = 15 * time.Second
	defaultRenewDeadline = 10 * time.Second
	defaultRetryPeriod   = 2 * time.Second
)

func (c Config) withDefaults() Config {
	if c.LeaseDuration == 0 {
		c.LeaseDuration = defaultLeaseDuration
	}
	if c.RenewDeadline == 0 {
		c.RenewDeadline = defaultRenewDeadline
	}
	if c.RetryPeriod == 0 {
		c.RetryPeriod = defaultRetryPeriod
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Manager == nil:
		return invalid("Manager", "nil", "an election needs a lease to compete for")
	case c.Callbacks.OnStartedLeading == nil:
		return invalid("Callbacks.OnStartedLeading", "nil", "it must not be")
	case c.Callbacks.OnStoppedLeading == nil:
		return invalid("Callbacks.OnStoppedLeading", "nil", "it must not be")
	case c.FenceFloor != nil && !c.hasEpochs():
		return invalid("FenceFloor", "set", "a Redlock manager has epochs, and a floor for them, only with QuorumFencing")
	}
	if n := len(record.Encode(c.record(0))); n > redlock.MaxMetadata {
		return invalid("Identity", fmt.Sprintf("%d bytes long", len(c.Identity)),
			fmt.Sprintf("with it the record takes %d bytes, and at most %d are stored", n, redlock.MaxMetadata))
	}
	return c.validateDurations()
}

// hasEpochs reports whether terms have epochs.
func (c Config) hasEpochs() bool { return c.QuorumFencing || c.Manager.Mode() == redlock.ModeSingle }

// jitterFactor is client-go's: between RetryPeriod and RenewDeadline there must be room for a second attempt.
const jitterFactor = leaderelection.JitterFactor

func (c Config) validateDurations() error {
	// The validity ends before LeaseDuration does, and cuts RenewDeadline short: it needs the same room.
	attempts := time.Duration(jitterFactor * float64(c.RetryPeriod))
	switch {
	case c.LeaseDuration < 0:
		return invalid("LeaseDuration", c.LeaseDuration, "it must be greater than zero")
	case c.LeaseDuration > redlock.MaxExpiry:
		return invalid("LeaseDuration", c.LeaseDuration, fmt.Sprintf("it must not exceed %v", redlock.MaxExpiry))
	case c.RenewDeadline < 0:
		return invalid("RenewDeadline", c.RenewDeadline, "it must be greater than zero")
	case c.RetryPeriod < 0:
		return invalid("RetryPeriod", c.RetryPeriod, "it must be greater than zero")
	case c.LeaseDuration <= c.RenewDeadline:
		return invalid("LeaseDuration", c.LeaseDuration,
			fmt.Sprintf("it must be greater than RenewDeadline, %v", c.RenewDeadline))
	case c.RenewDeadline <= attempts:
		return invalid("RenewDeadline", c.RenewDeadline,
			fmt.Sprintf("it must be greater than RetryPeriod, %v, times %v", c.RetryPeriod, jitterFactor))
	case c.Manager.Validity(c.LeaseDuration) <= attempts:
		return invalid("LeaseDuration", c.LeaseDuration, fmt.Sprintf(
			"its validity, %v without clock drift, must be greater than RetryPeriod, %v, times %v",
			c.Manager.Validity(c.LeaseDuration), c.RetryPeriod, jitterFactor))
	}
	return nil
}

// invalid reports bad input by the name and the value of the field.
func invalid(field string, value any, why string) error {
	return fmt.Errorf("election: Config.%s is %v: %s", field, value, why)
}

// defaultIdentity is unique to this call, as client-go's users make theirs.
func defaultIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf(`election: Config.Identity is "", and its default needs the name of the host: %w`, err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}
