package main

import (
	"fmt"
	"slices"
	"time"
)

// What a replica reports.
const (
	running = "running" // its manager has started, and campaigns
	leading = "leading" // the leader's work begins
	worked  = "worked"  // a piece of it is done; if there is a store, it has accepted a write
	refused = "refused" // the store has not: somebody leads under a higher epoch
	stopped = "stopped" // the leader's work has ended; the lease is still held
	exited  = "exited"  // the process is gone: this the demo itself adds
)

// event is what a replica reports, as a line of JSON on its standard output.
type event struct {
	At      time.Time `json:"at"`
	Replica string    `json:"replica"`
	Event   string    `json:"event"`
	Epoch   uint64    `json:"epoch,omitempty"`
	Detail  string    `json:"detail,omitempty"`
}

// term is one leader's work, to judge by its reports.
type term struct {
	replica      string
	epoch        uint64
	began, ended time.Time
	last         time.Time // piece of work
	pieces       int
}

// history is what the replicas have reported so far.
type history struct {
	up    map[string]bool
	gone  map[string]event
	terms []*term // ordered by their beginning
}

func (h *history) note(e event) {
	if h.up == nil {
		h.up, h.gone = make(map[string]bool), make(map[string]event)
	}
	t := h.of(e.Replica)
	switch e.Event {
	case running:
		h.up[e.Replica] = true
	case leading:
		h.terms = append(h.terms, &term{replica: e.Replica, epoch: e.Epoch, began: e.At})
		slices.SortStableFunc(h.terms, func(a, b *term) int { return a.began.Compare(b.began) })
	case worked:
		if t != nil {
			t.last, t.pieces = e.At, t.pieces+1
		}
	case stopped:
		if t != nil {
			t.ended = e.At
		}
	case exited:
		h.gone[e.Replica] = e
		if t != nil && t.ended.IsZero() {
			t.ended = e.At // it was killed
		}
	}
}

// of returns the latest term of a replica.
func (h *history) of(replica string) *term {
	for _, t := range slices.Backward(h.terms) {
		if t.replica == replica {
			return t
		}
	}
	return nil
}

// check reports what must not be: two who lead at one moment, or an epoch that does not grow. One Redis counts the terms;
// of three, which agree, an attempt that failed may have used one up.
func (h *history) check(counted bool) error {
	for i, t := range h.terms {
		if want := uint64(i + 1); t.epoch < want || counted && t.epoch != want {
			return fmt.Errorf("%s leads under epoch %d; for term %d it should be %d", t.replica, t.epoch, i+1, want)
		}
		if i == 0 {
			continue
		}
		before := h.terms[i-1]
		if t.epoch <= before.epoch {
			return fmt.Errorf("%s leads under epoch %d after %d", t.replica, t.epoch, before.epoch)
		}
		if before.ended.IsZero() {
			return fmt.Errorf("%s leads while %s does", t.replica, before.replica)
		}
		if d := before.ended.Sub(t.began); d > 0 {
			return fmt.Errorf("%s began to lead %v before the end of %s's term", t.replica, d, before.replica)
		}
		if d := before.last.Sub(t.began); d > 0 {
			return fmt.Errorf("%s still worked %v after %s had begun", before.replica, d, t.replica)
		}
	}
	return nil
}
