package election

import (
	"context"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// maxUntold is how many names wait for a slow OnNewLeader before the oldest is left out.
const maxUntold = 64

// herald tells OnNewLeader of every new leader, in order, without anybody waiting for it. Its goroutine
// lives while there is something to tell.
type herald struct {
	tell func(identity string) // may be nil

	mu     sync.Mutex
	newest string        // of those announced
	untold []string      // oldest first
	idle   chan struct{} // closed when the goroutine has told all; nil when there is none
}

// announce has the leader told, unless it is the one announced before.
func (h *herald) announce(identity string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tell == nil || identity == h.newest {
		return
	}
	h.newest = identity
	if len(h.untold) == maxUntold {
		h.untold = h.untold[1:]
	}
	h.untold = append(h.untold, identity)
	if h.idle == nil {
		h.idle = make(chan struct{})
		go h.work(h.idle)
	}
}

func (h *herald) work(idle chan struct{}) {
	defer close(idle)
	defer utilruntime.HandleCrashWithContext(context.Background())
	for last := ""; ; {
		identity, ok := h.next()
		if !ok {
			return
		}
		if identity != last { // what lay between was left out
			h.tell(identity)
		}
		last = identity
	}
}

func (h *herald) next() (identity string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.untold) == 0 {
		h.idle = nil
		return "", false
	}
	identity, h.untold = h.untold[0], h.untold[1:]
	return identity, true
}

// rest waits until everything is told, for patience at most. A callback that takes longer loses what is still
// untold; its goroutine, which nothing can end, ends when the callback returns.
func (h *herald) rest(patience time.Duration) {
	h.mu.Lock()
	idle := h.idle
	h.mu.Unlock()
	if idle == nil {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		h.mu.Lock()
		defer h.mu.Unlock()
		h.untold = nil
	}
}
