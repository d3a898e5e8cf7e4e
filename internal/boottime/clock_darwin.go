package boottime

import "golang.org/x/sys/unix"

const (
	realtime  = unix.CLOCK_REALTIME
	sinceBoot = unix.CLOCK_MONOTONIC_RAW
)
