package redistest

import (
	"crypto/rand"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	envSingle   = "REDIS_ADDR"          // host:port of the server that Single returns
	envRedlock  = "REDLOCK_REDIS_ADDRS" // host:port,host:port,... of those that Redlock returns
	envRequired = "REDISTEST_REQUIRED"  // "1": a missing redis-server fails the tests that need one
	envCI       = "CI"                  // set: as if envRequired were "1"
)

// Single returns the address of a server to test against: the one in REDIS_ADDR, or one started for the test.
// A given server may be shared and hold other data: use Key, and flush nothing.
func Single(tb testing.TB) string {
	tb.Helper()
	if addr := os.Getenv(envSingle); addr != "" {
		return addr
	}
	return Start(tb).Addr()
}

// Redlock returns the addresses of an odd number of independent servers, at least three: those in
// REDLOCK_REDIS_ADDRS, separated by commas, or three started for the test. See Single on given servers.
func Redlock(tb testing.TB) []string {
	tb.Helper()
	if given := os.Getenv(envRedlock); given != "" {
		addrs := split(given)
		if !independent(addrs) {
			tb.Fatalf("%s=%q must name an odd number of different servers, at least three", envRedlock, given)
		}
		return addrs
	}
	var addrs []string
	for _, s := range StartN(tb, 3) {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

func split(given string) []string {
	addrs := strings.Split(given, ",")
	for i := range addrs {
		addrs[i] = strings.TrimSpace(addrs[i])
	}
	return addrs
}

func independent(addrs []string) bool {
	different := len(slices.Compact(slices.Sorted(slices.Values(addrs)))) == len(addrs)
	return different && len(addrs) >= 3 && len(addrs)%2 == 1 && !slices.Contains(addrs, "")
}

// Key returns a key that no other test and no other run uses, so that tests can share servers. Each call returns
// another one.
func Key(tb testing.TB) string { return tb.Name() + "-" + rand.Text()[:8] }

const missing = "redis-server is not on the PATH: install Redis (apt-get install redis-server, or brew install redis)"

// lookup returns the path of redis-server. Without one the test is skipped on a developer's machine; where the
// tests are meant to be complete it fails.
func lookup(tb testing.TB) string {
	tb.Helper()
	path, err := exec.LookPath("redis-server")
	if err == nil {
		return path
	}
	if os.Getenv(envRequired) == "1" || os.Getenv(envCI) != "" {
		tb.Fatal(missing)
	}
	tb.Skip(missing)
	return ""
}
