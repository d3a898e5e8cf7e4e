package resourcelock

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

// Lock is a Redis lease as client-go sees it. Its methods are safe for concurrent use; one Lock is one candidate, and
// belongs to one LeaderElector or manager.
type Lock struct {
	cfg  Config
	keys record.Keys
	log  logr.Logger

	mu          sync.Mutex // never held across the network
	term        *term      // the current one, or a lost one that the elector has not yet given up
	changed     chan struct{}
	contexts    map[*context.CancelCauseFunc]struct{}
	highest     uint64    // epoch ever seen, ours or another's
	transitions int       // LeaderTransitions last seen; -1 if no term was ever seen
	seen        *sighting // what Get answered last
}

var _ rl.Interface = (*Lock)(nil)

// Identity returns the name of this candidate.
func (l *Lock) Identity() string { return l.cfg.Identity }

// Describe returns namespace/name.
func (l *Lock) Describe() string { return l.cfg.Namespace + "/" + l.cfg.Name }

// Epoch returns the epoch of the current term of this process: its fencing token. It is 0 when this process
// does not hold the lease at this moment, and always with a Redlock manager unless Config.QuorumFencing is set.
func (l *Lock) Epoch() uint64 {
	if t := l.current(); t.held() {
		return t.lock.FencingToken()
	}
	return 0
}

// Lost returns a channel that is closed when the lease of the current term is lost, no later than the end of its
// validity. A release does not close it. Every term has a channel of its own; without a term it is never closed.
func (l *Lock) Lost() <-chan struct{} {
	if t := l.current(); t != nil {
		return t.lock.Lost()
	}
	return make(chan struct{})
}

// Context returns a copy of parent for one run of LeaderElector.Run. It is cancelled with cause redlock.ErrLockLost
// when a term of this lock is lost: the elector then stops leading at once, and not at its RenewDeadline. It
// is cancelled with cause redlock.ErrNotHeld before a term is released, which client-go does while the work may still
// be on when it could not renew in time. The CancelFunc frees its resources.
func (l *Lock) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.term; t != nil && !t.held() {
		cancel(redlock.ErrLockLost)
		return ctx, func() {}
	}
	l.contexts[&cancel] = struct{}{}
	return ctx, func() {
		l.mu.Lock()
		delete(l.contexts, &cancel)
		l.mu.Unlock()
		cancel(context.Canceled)
	}
}

// Start makes the lock a controller-runtime Runnable: after mgr.Add(lock) the manager stops the moment the lease is
// lost. It returns an error that is redlock.ErrLockLost then, and nil when ctx ends.
func (l *Lock) Start(ctx context.Context) error {
	for {
		l.mu.Lock()
		t, changed := l.term, l.changed
		l.mu.Unlock()
		var lost <-chan struct{}
		if t != nil {
			lost = t.lock.Lost()
		}
		select {
		case <-lost:
			return fmt.Errorf("resourcelock: leading %s: %w", l.Describe(), redlock.ErrLockLost)
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// NeedLeaderElection tells controller-runtime to start the lock whoever leads.
func (l *Lock) NeedLeaderElection() bool { return false }

// What client-go says of a candidate.
const (
	becameLeader   = "became leader"
	stoppedLeading = "stopped leading"
)

// RecordEvent records what client-go has to say of this candidate on the Lease object that it would use, if there is
// an EventRecorder. "stopped leading" also ends the term: the lock may acquire again.
func (l *Lock) RecordEvent(s string) {
	switch s {
	case becameLeader:
		l.led()
	case stoppedLeading:
		l.end(l.current())
	}
	if l.cfg.EventRecorder == nil {
		return
	}
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{Kind: "Lease", APIVersion: coordinationv1.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Namespace: l.cfg.Namespace, Name: l.cfg.Name},
	}
	l.cfg.EventRecorder.Eventf(lease, corev1.EventTypeNormal, "LeaderElection", "%s", l.cfg.Identity+" "+s)
}

// wrap adds to an error which lease it is about.
func (l *Lock) wrap(doing string, err error) error {
	return fmt.Errorf("resourcelock: %s %s as %s: %w", doing, l.Describe(), l.cfg.Identity, err)
}
