package sim

import (
	"context"
	"flag"
	"fmt"
	"runtime/debug"
	"strings"
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

// Every plan, and everything that a lease promises: never two holders, tokens that grow, a loss that is told,
// progress after the faults, and nothing left behind.
func TestPlans(t *testing.T) {
	if *seed != 0 {
		runSeed(t, *seed, true)
		return
	}
	const batches = 8
	for b := range uint64(batches) {
		t.Run(fmt.Sprint("batch", b), func(t *testing.T) {
			t.Parallel()
			for s := *first + b; s < *first+*seeds && !t.Failed(); s += batches {
				runSeed(t, s, false)
			}
		})
	}
}

func runSeed(t *testing.T, seed uint64, verbose bool) {
	synctest.Test(t, func(t *testing.T) {
		timeline, faults := run(newPlan(seed))
		if verbose {
			t.Log(timeline)
		}
		if len(faults) > 0 {
			t.Errorf("seed %d:\n%s\n\n%s", seed, strings.Join(faults[:min(len(faults), 5)], "\n"), timeline)
		}
	})
}
