package redlock

import (
	"testing"
	"time"
)

func TestQuorum(t *testing.T) {
	for n, want := range map[int]int{1: 1, 3: 2, 5: 3, 7: 4} {
		if got := quorumOf(n); got != want {
			t.Errorf("quorumOf(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestValidityIsTTLLessElapsedLessDrift(t *testing.T) {
	for _, c := range []struct {
		ttl, elapsed time.Duration
		factor       float64
		want         time.Duration
	}{
		{30 * time.Second, 0, 0.01, 29*time.Second + 698*time.Millisecond},
		{10 * time.Second, 250 * time.Millisecond, 0.01, 9*time.Second + 648*time.Millisecond},
		{time.Second, 995 * time.Millisecond, 0.01, -7 * time.Millisecond},
		{100 * time.Nanosecond, 0, 0.011, 98*time.Nanosecond - 2*time.Millisecond}, // ceil(1.1) = 2
		{time.Minute, 0, 0.5, 30*time.Second - 2*time.Millisecond},
	} {
		if got := validity(c.ttl, c.elapsed, c.factor); got != c.want {
			t.Errorf("validity(%v, %v, %v) = %v, want %v", c.ttl, c.elapsed, c.factor, got, c.want)
		}
	}
}

func TestVerdictComesAsEarlyAsTheAnswersAllow(t *testing.T) {
	for _, c := range []struct {
		tally
		want verdict
	}{
		{tally{nodes: 1}, undecided},
		{tally{nodes: 1, granted: 1}, granted},
		{tally{nodes: 1, refused: 1}, refused},
		{tally{nodes: 1, failed: 1}, unknown},
		{tally{nodes: 3, granted: 1}, undecided},
		{tally{nodes: 3, granted: 2}, granted},
		{tally{nodes: 3, granted: 1, refused: 1}, undecided},
		{tally{nodes: 3, refused: 2}, refused},
		{tally{nodes: 3, granted: 1, refused: 2}, refused},
		{tally{nodes: 3, failed: 2}, unknown},
		{tally{nodes: 3, refused: 1, failed: 1}, unknown},
		{tally{nodes: 3, granted: 1, failed: 1}, undecided},
		{tally{nodes: 3, granted: 1, refused: 1, failed: 1}, unknown},
		{tally{nodes: 5, granted: 2, refused: 1}, undecided},
		{tally{nodes: 5, granted: 2, refused: 2}, undecided},
		{tally{nodes: 5, granted: 3, refused: 2}, granted},
		{tally{nodes: 5, refused: 3}, refused},
		{tally{nodes: 5, refused: 2, failed: 1}, unknown},
	} {
		if got := c.verdict(); got != c.want {
			t.Errorf("%+v.verdict() = %v, want %v", c.tally, got, c.want)
		}
	}
}

func TestAtQuorumIsWhatAMajorityReaches(t *testing.T) {
	for _, c := range []struct {
		ds   []time.Duration
		n    int
		want time.Duration
	}{
		{[]time.Duration{7}, 1, 7},
		{[]time.Duration{5, 9}, 3, 5},
		{[]time.Duration{5, 9, 1}, 3, 5},
		{[]time.Duration{9}, 3, 0},
		{nil, 3, 0},
		{[]time.Duration{1, 2, 3, 4, 5}, 5, 3},
	} {
		if got := atQuorum(c.ds, c.n); got != c.want {
			t.Errorf("atQuorum(%v, %d) = %v, want %v", c.ds, c.n, got, c.want)
		}
	}
}
