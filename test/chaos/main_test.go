//go:build chaos && linux

package chaos

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

var (
	seed  = flag.Uint64("seed", 0, "run this plan only")
	seeds = flag.Uint64("seeds", 8, "how many plans to run")
)

func TestMain(m *testing.M) {
	if o := os.Getenv(orderVariable); o != "" {
		os.Exit(candidate(o))
	}
	goleak.VerifyTestMain(m)
}
