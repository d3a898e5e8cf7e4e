//go:build kind

package kind

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is what a replica of the example says on its standard output.
type event struct {
	At      time.Time `json:"at"`
	Replica string    `json:"replica"`
	Event   string    `json:"event"` // running, leading, worked, refused, stopped
	Epoch   uint64    `json:"epoch"`
}

// term is one leader's work, from what it said.
type term struct {
	replica      string
	epoch        uint64
	began, ended time.Time // ended is zero while it leads
}

// timeline has what all replicas have said. All clocks are those of one machine.
type timeline struct {
	mu     sync.Mutex
	events []event
	ended  []event // of those that could not say so
	broken error   // why some of what was said is missing
}

// read notes what a replica says until its output ends.
func (l *timeline) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Event != "" {
			l.mu.Lock()
			l.events = append(l.events, e)
			l.mu.Unlock()
		}
	}
}

// end notes that a replica has ended by then, with whatever it had begun. One that is killed cannot say so, and one that
// has lost its lease ends at once.
func (l *timeline) end(replica string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, event{At: at, Replica: replica, Event: "ended"})
}

// breaks notes that what a replica said is missing from here on: nothing can be judged any more.
func (l *timeline) breaks(replica string, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = errors.Join(l.broken, fmt.Errorf("the output of %s is incomplete: %w", replica, why))
}

// sorted returns all events in the order of their times: outputs are read side by side.
func (l *timeline) sorted() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Concat(l.events, l.ended)
	slices.SortStableFunc(all, func(a, b event) int { return a.At.Compare(b.At) })
	return all
}

func (l *timeline) terms() (terms []*term) {
	leads := map[string]*term{}
	for _, e := range l.sorted() {
		switch t := leads[e.Replica]; {
		case e.Event == "leading":
			t = &term{replica: e.Replica, epoch: e.Epoch, began: e.At}
			leads[e.Replica] = t
			terms = append(terms, t)
		case (e.Event == "stopped" || e.Event == "ended") && t != nil:
			t.ended = e.At
			delete(leads, e.Replica)
		}
	}
	return terms
}

// check returns an error if two ever led at a time, if an epoch did not grow, or if something is missing.
func (l *timeline) check() error {
	l.mu.Lock()
	broken := l.broken
	l.mu.Unlock()
	if broken != nil {
		return broken
	}
	terms := l.terms()
	for i, t := range terms[min(1, len(terms)):] {
		before := terms[i]
		switch {
		case before.ended.IsZero():
			return fmt.Errorf("%s leads since %v, and %s still does", t.replica, t.began, before.replica)
		case before.ended.After(t.began):
			return fmt.Errorf("%s began to lead %v before %s had ended", t.replica, before.ended.Sub(t.began), before.replica)
		case t.epoch <= before.epoch:
			return fmt.Errorf("%s leads under epoch %d, %s did before under epoch %d", t.replica, t.epoch, before.replica, before.epoch)
		}
	}
	return nil
}

// judge is check with patience: outputs are read side by side, so that a leader's first words may arrive before its
// predecessor's last. What they say of the time does not change by that.
func (l *timeline) judge(ctx context.Context) (err error) {
	for deadline := time.Now().Add(10 * time.Second); ; {
		if err = l.check(); err == nil || time.Now().After(deadline) {
			return err
		}
		if stop := sleep(ctx, 20*time.Millisecond); stop != nil {
			return err
		}
	}
}

// has reports whether a replica has said that.
func (l *timeline) has(replica, what string) bool {
	return slices.ContainsFunc(l.sorted(), func(e event) bool { return e.Replica == replica && e.Event == what })
}

func (l *timeline) String() string {
	var b strings.Builder
	for _, e := range l.sorted() {
		if e.Event != "worked" {
			fmt.Fprintf(&b, "%s  %s %s (epoch %d)\n", e.At.Format("15:04:05.000"), e.Replica, e.Event, e.Epoch)
		}
	}
	return b.String()
}

// leader waits until exactly one leads, in a term after the given one (nil: any), and returns its term.
func (l *timeline) leader(ctx context.Context, after *term) (*term, error) {
	for {
		if err := l.judge(ctx); err != nil {
			return nil, err
		}
		if t := present(l.terms()); t != nil && (after == nil || t.began.After(after.began)) {
			return t, nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return nil, fmt.Errorf("waiting for a leader: %w; so far:\n%s", err, l)
		}
	}
}

// present returns the last term, if it lasts and the end of the one before is known.
func present(terms []*term) *term {
	n := len(terms)
	if n == 0 || !terms[n-1].ended.IsZero() || n > 1 && terms[n-2].ended.IsZero() {
		return nil
	}
	return terms[n-1]
}
