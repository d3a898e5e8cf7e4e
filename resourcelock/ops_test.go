package resourcelock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/resourcelock"
)

// opsLock notes what an elector asks of its lock.
type opsLock struct {
	rl.Interface
	before func(op string)            // each call
	after  func(op string, err error) // each call

	mu  sync.Mutex
	ops []op
}

type op struct {
	at   time.Time
	name string
}

// record is an option of a candidate: o stands between its elector and its lock.
func (o *opsLock) record(_ *resourcelock.Config, lec *leaderelection.LeaderElectionConfig) {
	lec.Lock = o
}

// newOpsElector returns an elector over c's own lock, and calls before with each call of it.
func newOpsElector(t *testing.T, c *candidate, before func(op string)) *leaderelection.LeaderElector {
	t.Helper()
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          &opsLock{Interface: c.lock, before: before},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { c.mu.Lock(); c.started = append(c.started, c.lock.Epoch()); c.mu.Unlock() },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (o *opsLock) note(name string) func(error) {
	o.mu.Lock()
	o.ops = append(o.ops, op{time.Now(), name})
	o.mu.Unlock()
	if o.before != nil {
		o.before(name)
	}
	return func(err error) {
		if o.after != nil {
			o.after(name, err)
		}
	}
}

// since returns the names of the calls from begin on.
func (o *opsLock) since(begin time.Time) (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.ops {
		if !op.at.Before(begin) {
			names = append(names, op.name)
		}
	}
	return names
}

func (o *opsLock) Get(ctx context.Context) (*rl.LeaderElectionRecord, []byte, error) {
	done := o.note("get")
	r, raw, err := o.Interface.Get(ctx)
	done(err)
	return r, raw, err
}

func (o *opsLock) Create(ctx context.Context, ler rl.LeaderElectionRecord) error {
	done := o.note("create")
	err := o.Interface.Create(ctx, ler)
	done(err)
	return err
}

func (o *opsLock) Update(ctx context.Context, ler rl.LeaderElectionRecord) error {
	done := o.note("update")
	err := o.Interface.Update(ctx, ler)
	done(err)
	return err
}
