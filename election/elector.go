package election

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

// The causes with which the context of a term is cancelled: compare context.Cause with errors.Is.
var (
	// ErrLost says that the lease was lost: another candidate may lead any moment, or does already.
	// It is also redlock.ErrLockLost.
	ErrLost = fmt.Errorf("leadership lost: %w", redlock.ErrLockLost)

	// ErrSteppedDown says that StepDown was called. The lease is held until the work has returned.
	ErrSteppedDown = errors.New("leader is stepping down")

	// ErrStopping says that Run's context has ended, whose own cause is wrapped as well. The lease is held
	// until the work has returned.
	ErrStopping = errors.New("leader is stopping")
)

// ErrNotLeading says that StepDown was called on a candidate that does not lead.
var ErrNotLeading = errors.New("not leading")

// Elector is one candidate of one election. It is safe for concurrent use; what it knows of the election
// (IsLeader, Epoch, Leader, Check) it answers at once and without the network.
type Elector struct {
	cfg     Config
	keys    record.Keys
	lease   string // namespace/name
	logger  logr.Logger
	herald  herald
	metrics *metrics // nil unless asked for

	running atomic.Bool
	term    atomic.Pointer[term] // the latest of this candidate, also when it is over
	trouble bool                 // the last attempt met some; Run's own

	mu     sync.Mutex
	memory memory
}

// New returns a candidate, which does nothing before Run. An error names the field of cfg and its value.
func New(cfg Config) (*Elector, error) {
	cfg = cfg.withDefaults()
	keys, err := record.NewKeys(cfg.Namespace, cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("election: Config.%w", err)
	}
	if cfg.Identity == "" {
		if cfg.Identity, err = defaultIdentity(); err != nil {
			return nil, err
		}
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Elector{
		cfg:    cfg,
		keys:   keys,
		lease:  cfg.Namespace + "/" + cfg.Name,
		herald: herald{tell: cfg.Callbacks.OnNewLeader},
		logger: cfg.Logger.WithValues("lease", klog.KRef(cfg.Namespace, cfg.Name), "identity", cfg.Identity),
	}
	if cfg.Registerer != nil {
		e.metrics = newMetrics(e)
	}
	return e, nil
}

// Run takes part in the election until ctx ends: it waits for its turn, leads, and waits again after a loss or
// StepDown. The package comment tells what happens in a term.
//
// It returns nil when ctx has ended, the work has returned and the lease is released; an error if the
// Manager is closed, if the Elector is running already, or if Config.Registerer refuses the metrics. Trouble with
// Redis is no reason to return. Run may be called again when it has returned.
func (e *Elector) Run(ctx context.Context) error {
	defer utilruntime.HandleCrashWithContext(ctx)
	if !e.running.CompareAndSwap(false, true) {
		return fmt.Errorf("election %s: it is running already", e.lease)
	}
	defer e.running.Store(false)
	if err := e.metrics.register(e.cfg.Registerer); err != nil {
		return fmt.Errorf("election %s: Config.Registerer refuses the metrics: %w", e.lease, err)
	}
	defer e.metrics.unregister(e.cfg.Registerer)
	defer e.herald.rest(e.cfg.RetryPeriod)

	w := e.cfg.Manager.Watch(e.keys.Lease)
	defer w.Close()
	w.Poll = e.cfg.RetryPeriod*2/3 + 1 // with up to half of it at random: within RetryPeriod
	for {
		t, err := e.campaign(ctx, w)
		if t == nil {
			return err
		}
		e.lead(ctx, t)
		e.standBy(ctx, w, t)
	}
}

// Start is Run: an Elector can be added to a controller-runtime manager.
func (e *Elector) Start(ctx context.Context) error { return e.Run(ctx) }

// NeedLeaderElection returns false: an Elector in a controller-runtime manager is not itself led.
func (e *Elector) NeedLeaderElection() bool { return false }

// IsLeader reports whether this candidate leads at this moment. It compares clocks: a process that was
// stopped past the end of its lease is told so by its first call. It is true until OnStoppedLeading is called,
// also while a leader that stops waits for its work.
func (e *Elector) IsLeader() bool { return e.leading() != nil }

// Epoch returns the epoch of the current term of this candidate, 0 when it does not lead or, with a Redlock
// Manager, when there are no epochs. Work should take its epoch from its context, see EpochFrom: another
// term may have begun since it was started.
func (e *Elector) Epoch() uint64 {
	if t := e.leading(); t != nil {
		return t.epoch
	}
	return 0
}

// leading returns the current term of this candidate, or nil.
func (e *Elector) leading() *term {
	if t := e.term.Load(); t != nil && t.leading() {
		return t
	}
	return nil
}

// Leader returns who leads, as far as this candidate knows: an empty identity when it knows of nobody. About
// itself it is always right; another may have been followed by a third whom it has not noticed yet.
func (e *Elector) Leader() (identity string, epoch uint64) {
	if t := e.leading(); t != nil {
		return e.cfg.Identity, t.epoch
	}
	m := e.remembered()
	if m.vacant {
		return "", 0
	}
	return m.last.Identity, m.last.Epoch
}

// StepDown ends the current term in good order: the context of the work is cancelled with ErrSteppedDown, and
// when the work has returned the lease is released, whatever ReleaseOnCancel says. Then this candidate stays out
// for one RetryPeriod, so that another gets the lease, and takes part again.
//
// It returns nil when the term has ended in good order; ErrNotLeading when there is none; ErrLost when the lease was
// lost before the work had returned, or its release was not confirmed; the error of ctx when that ended first: the term ends
// nevertheless. Work that calls it waits for itself, unless it passes the context that it was given.
func (e *Elector) StepDown(ctx context.Context) error {
	t := e.leading()
	if t == nil {
		return fmt.Errorf("election %s: %w", e.lease, ErrNotLeading)
	}
	t.cancel(ErrSteppedDown)
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Name is the name of the health check: leaderElection-namespace-name.
func (e *Elector) Name() string {
	return strings.Join(strings.FieldsFunc("leaderElection/"+e.lease, func(r rune) bool { return r == '/' }), "-")
}

// Check is a health check (k8s.io/apiserver's HealthChecker; controller-runtime's healthz.Checker). It fails
// when a term was lost and OnStartedLeading has still not returned a LeaseDuration later: the process
// does work that it has no right to, and can lead no more. To follow is healthy, also while Redis is out of reach.
func (e *Elector) Check(*http.Request) error {
	t := e.term.Load()
	if t == nil || t.working.Err() != nil {
		return nil
	}
	if over := t.over.Load(); over != nil && time.Since(*over) > e.cfg.LeaseDuration {
		return fmt.Errorf("election %s: leadership ended %v ago, and OnStartedLeading has not returned",
			e.lease, time.Since(*over).Round(time.Millisecond))
	}
	return nil
}
