package election

import (
	"context"
	"errors"
	"time"

	"github.com/ndyakov/go-redlock/redlock"
)

// renewals are the goroutine that keeps the lease of a term.
type renewals struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // with which the last one failed
}

// keepRenewing renews t every RetryPeriod until stop, or until it is lost.
func (e *Elector) keepRenewing(t *term) *renewals {
	ctx, cancel := context.WithCancel(context.Background())
	r := &renewals{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = e.renew(ctx, t)
	}()
	return r
}

// stop ends the renewals and returns why the last one failed, if it did. It may be called again.
func (r *renewals) stop() error {
	r.cancel()
	<-r.done
	return r.err
}

func (e *Elector) renew(ctx context.Context, t *term) error {
	timer := time.NewTimer(jittered(e.cfg.RetryPeriod))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-t.lock.Lost(): // by the clock
			return nil
		case <-ctx.Done():
			return nil
		}
		from := time.Now()
		err := t.lock.Extend(ctx, e.cfg.LeaseDuration)
		e.metrics.renewal(time.Since(from))
		if errors.Is(err, redlock.ErrLockLost) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // the Manager is closed
			e.logger.V(1).Info("Lease not renewed", "epoch", t.epoch, "error", err.Error())
		}
		timer.Reset(jittered(e.cfg.RetryPeriod))
	}
}

// The reasons of a loss, as metrics and logs give them.
const (
	lossExpired     = "expired"     // its validity ended before a renewal was tried: the process had stood still
	lossUnreachable = "unreachable" // no renewal was confirmed until RenewDeadline
	lossGone        = "gone"        // it was deleted, or Redis has lost its data
)

// lossReason tells why a lease was lost from the error of its last renewal.
func lossReason(err error) string {
	var q *redlock.QuorumError
	if !errors.As(err, &q) {
		return lossExpired
	}
	nodes := 2*q.Required - 1
	if missing := nodes - q.Succeeded - len(q.NodeErrors); missing >= q.Required {
		return lossGone
	}
	return lossUnreachable
}
