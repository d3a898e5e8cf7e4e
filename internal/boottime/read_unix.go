//go:build linux || darwin

package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

func read(clock int32) (time.Duration, bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}
