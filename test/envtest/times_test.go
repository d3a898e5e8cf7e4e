//go:build envtest

package envtest

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// times are printed when all tests are over.
var times table

type table struct {
	mu   sync.Mutex
	rows []string
}

// add makes a row of the handovers that were measured, and returns their median.
func (t *table) add(lock, how string, d durations, measured []time.Duration) (median time.Duration) {
	slices.Sort(measured)
	median = measured[len(measured)/2]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, fmt.Sprintf("| %-17s | %-56s | %3v / %3v / %5v | %2d | %9s | %9s | %9s |",
		lock, how, d.Lease, d.Renew, d.Retry, len(measured), ms(measured[0]), ms(median), ms(measured[len(measured)-1])))
	return median
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }

func (t *table) print(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	slices.Sort(t.rows)
	fmt.Fprintf(w, "\n| %-17s | %-56s | %-17s | %2s | %9s | %9s | %9s |\n", "lock", "from ... to the next leader's work", "lease/renew/retry", "n", "least", "median", "most")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, r := range t.rows {
		fmt.Fprintln(w, r)
	}
}
