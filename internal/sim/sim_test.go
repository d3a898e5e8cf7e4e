package sim

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

var (
	seeds = flag.Uint64("seeds", 40, "how many plans to run")
	first = flag.Uint64("first", 1, "the first seed")
	seed  = flag.Uint64("seed", 0, "run this plan alone, and print its timeline")
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400)  // many short-lived worlds
	redis.SetLogger(quiet{}) // connections that fail are what this is about
	goleak.VerifyTestMain(m)
}

// Every plan, and everything that a lease and an election promise: never two holders, a loss that is told before a key
// can expire, tokens that grow, progress after the faults, and nothing left behind. It ends with the first seed that fails.
func TestPlans(t *testing.T) {
	if *seed != 0 {
		runSeed(t, *seed, true)
		return
	}
	var next atomic.Uint64
	var failed atomic.Bool
	for worker := range runtime.GOMAXPROCS(0) {
		t.Run(fmt.Sprint("worker", worker), func(t *testing.T) {
			t.Parallel()
			defer func() { failed.CompareAndSwap(false, t.Failed()) }()
			for n := next.Add(1); n <= *seeds && !failed.Load(); n = next.Add(1) {
				runSeed(t, *first+n-1, false)
			}
		})
	}
}

func runSeed(t *testing.T, seed uint64, verbose bool) {
	synctest.Test(t, func(t *testing.T) {
		timeline, faults := run(newPlan(seed), verbose)
		if verbose {
			t.Log(timeline)
		}
		if len(faults) > 0 {
			t.Errorf("seed %d:\n%s\n\n%s", seed, strings.Join(faults[:min(len(faults), 5)], "\n"), timeline)
		}
	})
}
