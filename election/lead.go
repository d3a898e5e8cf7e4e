package election

import (
	"context"
	"errors"
	"fmt"
)

// errDone ends the election of a Lead whose function has returned.
var errDone = errors.New("the work is done")

// Lead waits until it leads the election of cfg, runs fn once, and releases the lease when fn has returned. The
// context that fn gets is that of a term: EpochFrom tells its epoch, and it is cancelled with ErrLost when the
// lease is lost, and with ErrStopping when ctx ends; then the lease is kept until fn has returned.
//
// Lead returns when fn has: with fn's error, joined with ErrLost if the lease was lost meanwhile. If ctx ends
// before fn was run, it returns ctx's error; a bad cfg is reported as by New. The callbacks of cfg may be left
// out: OnStartedLeading must be.
func Lead(ctx context.Context, cfg Config, fn func(ctx context.Context) error) error {
	if fn == nil {
		return errors.New("election: fn is nil: there is nothing to do")
	}
	if cfg.Callbacks.OnStartedLeading != nil {
		return invalid("Callbacks.OnStartedLeading", "set", "Lead runs fn instead")
	}
	if cfg.Callbacks.OnStoppedLeading == nil {
		cfg.Callbacks.OnStoppedLeading = func() {}
	}
	campaign, stop := context.WithCancelCause(ctx)
	defer stop(errDone)
	led, result := false, fmt.Errorf("election %s/%s: the work did not return", cfg.Namespace, cfg.Name)
	cfg.Callbacks.OnStartedLeading = func(term context.Context) {
		defer stop(errDone)
		led = true
		result = fn(term)
		if errors.Is(context.Cause(term), ErrLost) {
			result = errors.Join(result, ErrLost)
		}
	}
	cfg.ReleaseOnCancel = true

	e, err := New(cfg)
	if err != nil {
		return err
	}
	switch err := e.Run(campaign); {
	case led:
		return result
	case err != nil:
		return err
	default:
		return ctx.Err()
	}
}
