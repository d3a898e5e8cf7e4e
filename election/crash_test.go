package election

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

var crashed struct {
	sync.Mutex
	values []string
}

// crashQuietly has panics noted instead of ending the process, until restore.
func crashQuietly(t *testing.T) (restore func()) {
	t.Helper()
	crashed.values = nil
	handlers := utilruntime.PanicHandlers
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = []func(context.Context, any){func(_ context.Context, r any) {
		crashed.Lock()
		defer crashed.Unlock()
		crashed.values = append(crashed.values, fmt.Sprint(r))
	}}
	return func() { utilruntime.ReallyCrash, utilruntime.PanicHandlers = true, handlers }
}

// crashes returns what was noted, sorted.
func crashes() []string {
	crashed.Lock()
	defer crashed.Unlock()
	return slices.Sorted(slices.Values(crashed.values))
}
