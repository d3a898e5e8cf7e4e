package boottime

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestElapsedOutsideABubble(t *testing.T) {
	start := Now()
	if _, ok := read(realtime); ok && start.boot == 0 {
		t.Fatal("outside a bubble an Instant must carry the boot clock")
	}
	time.Sleep(5 * time.Millisecond)
	if e := start.Elapsed(); e < 5*time.Millisecond || e > 5*time.Second {
		t.Fatalf("Elapsed() = %v after 5ms", e)
	}
}

func TestElapsedInABubbleIsTheBubbles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := Now()
		if start.boot != 0 {
			t.Fatal("an Instant of a bubble must not carry the kernel's clock")
		}
		time.Sleep(time.Hour)
		if e := start.Elapsed(); e != time.Hour {
			t.Fatalf("Elapsed() = %v, want 1h", e)
		}
		if left := start.Add(2 * time.Hour).Until(); left != time.Hour {
			t.Fatalf("Until() = %v, want 1h", left)
		}
	})
}

// A suspended machine is one whose boot clock ran on while the monotonic one stood.
func TestSuspendCounts(t *testing.T) {
	now := Now()
	if now.boot == 0 {
		return // no clock that counts suspend on this system
	}
	slept := Instant{mono: now.mono, boot: now.boot - time.Minute}
	if e := slept.Elapsed(); e < time.Minute {
		t.Fatalf("Elapsed() = %v, want at least the minute of suspend", e)
	}
	if end := slept.Add(30 * time.Second); !end.Time().Before(time.Now()) {
		t.Fatalf("Time() = %v is not over, 30s into a minute of suspend", end.Time())
	}
}

func TestAfterCountsSuspend(t *testing.T) {
	now := Now()
	later := Instant{mono: now.mono.Add(time.Second), boot: now.boot + time.Hour} // an hour of it asleep
	for _, c := range []struct {
		a, b Instant
		want bool
	}{
		{later, now, true}, {now, later, false}, {now, now, false}, {now, Instant{}, true}, {Instant{}, now, false},
		{later, now.Add(time.Minute), now.boot != 0}, {Instant{mono: later.mono}, now, true},
	} {
		if got := c.a.After(c.b); got != c.want {
			t.Errorf("%+v after %+v: %v", c.a, c.b, got)
		}
	}
}

func TestBubblesAreToldByTheirTime(t *testing.T) {
	if now := time.Now(); inBubble(now) {
		t.Errorf("%v counts as a bubble's", now)
	}
	if !inBubble(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Error("the beginning of a bubble's time does not count as one")
	}
}

func TestZeroInstantIsLongAgo(t *testing.T) {
	if e := (Instant{}).Elapsed(); e < 100*365*24*time.Hour {
		t.Fatalf("Elapsed() of the zero Instant = %v", e)
	}
}
