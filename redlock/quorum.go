package redlock

import (
	"math"
	"slices"
	"time"
)

// The decisions of the Redlock algorithm (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/)
// as functions of values: they do no I/O and read no clock.

// quorumOf returns the smallest majority of n nodes.
func quorumOf(n int) int { return n/2 + 1 }

// drift is the part of a TTL that is not relied on: clocks may run at different
// speeds, and keys expire with a precision of a millisecond.
func drift(ttl time.Duration, factor float64) time.Duration {
	return time.Duration(math.Ceil(float64(ttl)*factor)) + 2*time.Millisecond
}

// validity is how long a lease may be relied on, elapsed after the first send.
func validity(ttl, elapsed time.Duration, factor float64) time.Duration {
	return ttl - elapsed - drift(ttl, factor)
}

// verdict is what the answers of a phase amount to.
type verdict int

const (
	undecided verdict = iota // answers to come may change it
	granted                  // a majority did it
	refused                  // a majority can no longer do it: too many said no
	unknown                  // a majority can no longer do it: too many failed to answer
)

// tally counts the answers of a phase.
type tally struct {
	nodes   int
	granted int // did it
	refused int // executed the command and said no
	failed  int // did not, or may not, have executed it
}

func (t tally) pending() int { return t.nodes - t.granted - t.refused - t.failed }

// verdict decides as early as the answers allow.
func (t tally) verdict() verdict {
	quorum := quorumOf(t.nodes)
	switch {
	case t.granted >= quorum:
		return granted
	case t.refused > t.nodes-quorum:
		return refused
	case t.granted+t.pending() >= quorum:
		return undecided
	default:
		return unknown
	}
}

// atQuorum returns the largest duration that a majority of n nodes reaches.
// Nodes that are not among ds count as having reached nothing.
func atQuorum(ds []time.Duration, n int) time.Duration {
	quorum := quorumOf(n)
	if len(ds) < quorum {
		return 0
	}
	sorted := slices.Sorted(slices.Values(ds))
	return sorted[len(sorted)-quorum]
}
