package resourcelock

import (
	"context"
	"time"
)

const (
	// lookAgain is how long a waiting follower goes without reading the record, as long as the TTL is renewed:
	// a lease that was deleted and taken by somebody else looks just the same.
	lookAgain = 5 * time.Minute

	// pollsPerTTL is how often it looks where a release cannot be heard: as often as client-go would by default.
	pollsPerTTL = 8
)

// worthWaiting returns what Get has told of somebody else's term, if its next answer is to be what comes
// after that; nil if Get is to answer at once. Who holds the lease, or has lost it and not yet stopped
// leading, never waits.
func (l *Lock) worthWaiting() *sighting {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cfg.FastHandover && l.term == nil && l.seen.others() {
		return l.seen
	}
	return nil
}

// waitForChange returns what comes after the known term: another holder, or none. When ctx ends before that, it
// returns that term: the truth as far as it is known.
//
// While the holder renews, this costs Redis one command per TTL.
func (l *Lock) waitForChange(ctx context.Context, known *sighting) (*sighting, error) {
	w := l.cfg.Manager.Watch(l.keys.Lease)
	defer w.Close()
	for {
		s, err := l.look(ctx) // watched: from here on no release is missed
		switch {
		case ctx.Err() != nil:
			return known, nil
		case err != nil:
			return nil, err
		case !s.sameTerm(known):
			return s, nil
		}
		known = s
		w.Poll = max(s.ttl/pollsPerTTL, w.Poll)
		for again := true; again; again = l.renewedInTime(ctx, s) {
			if err := w.Wait(ctx, time.Until(s.end)); err != nil && ctx.Err() == nil {
				return nil, l.wrap("waiting for", err)
			}
		}
	}
}

// renewedInTime asks how long the lease of s lasts by now. It reports true if the lease must have been renewed
// before it could expire, which only its holder can have done, and notes its new end.
func (l *Lock) renewedInTime(ctx context.Context, s *sighting) bool {
	if time.Now().Before(s.end) || time.Since(s.at) > lookAgain {
		return false // woken by more than the time, or for long only by that
	}
	before := time.Now()
	left, err := l.cfg.Manager.TTL(ctx, l.keys.Lease)
	if err != nil || left <= 0 || left >= s.ttl-time.Since(s.earliest)-readPrecision {
		return false
	}
	s.expires(before, left)
	return true
}
