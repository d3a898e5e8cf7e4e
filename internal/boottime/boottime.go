// Package boottime measures how long ago something happened, counting the time
// in which the machine was suspended.
//
// Go's monotonic clock stands still while a Linux or macOS machine sleeps; a
// Redis server elsewhere does not, and lets keys expire meanwhile. A lease must
// therefore be measured with the clock that goes on: CLOCK_BOOTTIME on Linux,
// CLOCK_MONOTONIC_RAW (mach_continuous_time) on macOS. Where there is no such
// clock, Go's monotonic clock is used alone.
//
// In a testing/synctest bubble time is the bubble's. The kernel's clocks know
// nothing of it, so an Instant taken in a bubble carries the bubble's reading only.
package boottime

import "time"

// Instant is a moment on the clocks of this machine. The zero Instant is
// infinitely long ago. Instants are values and safe for concurrent use.
type Instant struct {
	mono time.Time     // carries Go's monotonic reading
	boot time.Duration // since boot, suspend included; 0: not known
}

// Now returns the present moment.
func Now() Instant {
	now := Instant{mono: time.Now()}
	if !inBubble(now.mono) {
		now.boot, _ = read(sinceBoot)
	}
	return now
}

// inBubble reports whether now was read in a bubble, whose clock starts in the year 2000. On a machine that
// thinks it is as early as that the kernel's clock tells.
func inBubble(now time.Time) bool {
	if now.Unix() > year2020 {
		return false
	}
	wall, ok := read(realtime)
	return !ok || (wall-time.Duration(now.UnixNano())).Abs() > time.Minute
}

const year2020 = 1577836800 // in seconds since 1970

// Elapsed returns the time since i, negative for a moment to come: by the
// monotonic clock or by the one that counts suspend, whichever says more.
func (i Instant) Elapsed() time.Duration {
	return time.Since(i.mono) + i.suspended()
}

// suspended returns for how long the machine has slept since i.
func (i Instant) suspended() time.Duration {
	if i.boot == 0 {
		return 0
	}
	boot, _ := read(sinceBoot)
	return max(0, boot-i.boot-time.Since(i.mono))
}

// Add returns the moment d after i.
func (i Instant) Add(d time.Duration) Instant {
	i.mono = i.mono.Add(d)
	if i.boot != 0 {
		i.boot += d
	}
	return i
}

// After reports whether i comes later than j.
func (i Instant) After(j Instant) bool {
	if i.boot != 0 && j.boot != 0 {
		return i.boot > j.boot
	}
	return i.mono.After(j.mono)
}

// Until returns the time left until i, negative once it has passed.
func (i Instant) Until() time.Duration { return -i.Elapsed() }

// Time returns i as a time.Time, to be compared with time.Now. It is moved back by
// the time that the machine has been suspended since, which Go's clock has not seen.
func (i Instant) Time() time.Time {
	if s := i.suspended(); s > time.Millisecond { // less is the distance between two readings
		return i.mono.Add(-s)
	}
	return i.mono
}
