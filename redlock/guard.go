package redlock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"
)

//go:embed scripts/uptime.lua
var uptimeText string

var uptimeScript = newScript(uptimeText)

// uptimeUnit is the precision in which servers count: one that says 3 may have been up for hardly more than 2 seconds.
const uptimeUnit = time.Second

// guard returns an error unless the server that has just granted the lease at key has been up for all of ttl: then it has
// forgotten no lease that may still be held. Asked before the grant it would not show a restart in between.
func (p *peer) guard(ctx context.Context, key string, ttl time.Duration) error {
	v, err := p.run(ctx, uptimeScript, false, []string{key})
	if err != nil {
		return guardError{fmt.Errorf("its uptime could not be asked for, see Config.RestartGuard: %w", err)}
	}
	seconds, err := strconv.ParseInt(fmt.Sprint(v), 10, 32)
	if err != nil {
		return guardError{fmt.Errorf("its uptime, %v, is no whole number: see Config.RestartGuard", v)}
	}
	if up := time.Duration(seconds) * time.Second; up < ttl+uptimeUnit {
		return guardError{fmt.Errorf("it has been up for %v only and may have forgotten a lease that is still held: "+
			"it counts after %v, see Config.RestartGuard", up, ttl+uptimeUnit)}
	}
	return nil
}

// guardError is why a node's grant does not count. The node did grant: what it answered to the question after
// that, which the error may wrap, must not be taken for its answer to the acquisition.
type guardError struct{ error }

func (e guardError) Unwrap() error { return errors.Unwrap(e.error) }

func isGuarded(err error) bool {
	var g guardError
	return errors.As(err, &g)
}
