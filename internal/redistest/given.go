package redistest

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"
)

// Single returns the address of the server to test against: REDIS_ADDR where that is set, or one that is started.
func Single(tb testing.TB) string {
	tb.Helper()
	if addr := os.Getenv("REDIS_ADDR"); addr != "" {
		return addr
	}
	return Start(tb).Addr()
}

// Redlock returns the addresses of the servers to test against: REDLOCK_REDIS_ADDRS, comma-separated, where that is
// set, or those of three that are started.
func Redlock(tb testing.TB) []string {
	tb.Helper()
	given := os.Getenv("REDLOCK_REDIS_ADDRS")
	if given == "" {
		return addrs(StartN(tb, 3))
	}
	list := strings.Split(given, ",")
	if len(list) < 3 || len(list)%2 == 0 {
		tb.Fatalf("REDLOCK_REDIS_ADDRS is %q: give an odd number of addresses, three at least", given)
	}
	return list
}

// Key returns a key that no other test uses: given servers are shared, and are never flushed.
func Key(tb testing.TB) string {
	return "test:" + tb.Name() + ":" + rand.Text()
}
