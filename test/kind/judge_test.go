//go:build kind

package kind

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestTimeline gives the judge of all scenarios timelines that it must accept, and others that it must not.
func TestTimeline(t *testing.T) {
	t.Parallel()
	start := time.Now()
	said := func(second int, replica, what string, epoch uint64) event {
		return event{start.Add(time.Duration(second) * time.Second), replica, what, epoch}
	}
	for name, c := range map[string]struct {
		events []event
		ended  map[string]int // the second by which one ended that did not say so
		want   string         // in the error; empty: none
	}{
		"one after the other": {
			events: []event{said(1, "a", "leading", 1), said(3, "a", "stopped", 1), said(4, "b", "leading", 2)},
		},
		"read in another order": {
			events: []event{said(4, "b", "leading", 2), said(1, "a", "leading", 1), said(3, "a", "stopped", 1)},
		},
		"one ended without a word": {
			events: []event{said(1, "a", "leading", 1), said(4, "b", "leading", 2)},
			ended:  map[string]int{"a": 3},
		},
		"two at a time": {
			events: []event{said(1, "a", "leading", 1), said(3, "b", "leading", 2), said(4, "a", "stopped", 1)},
			want:   "b began to lead 1s before a had ended",
		},
		"one killed too late": {
			events: []event{said(1, "a", "leading", 1), said(3, "b", "leading", 2)},
			ended:  map[string]int{"a": 5},
			want:   "b began to lead 2s before a had ended",
		},
		"one never stopped": {
			events: []event{said(1, "a", "leading", 1), said(3, "b", "leading", 2)},
			want:   "and a still does",
		},
		"the same epoch twice": {
			events: []event{said(1, "a", "leading", 2), said(3, "a", "stopped", 2), said(4, "b", "leading", 2)},
			want:   "b leads under epoch 2, a did before under epoch 2",
		},
	} {
		var l timeline
		for _, e := range c.events {
			line, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			l.read(strings.NewReader(string(line)))
		}
		for replica, second := range c.ended {
			l.end(replica, start.Add(time.Duration(second)*time.Second))
		}
		if err := l.check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}

	var l timeline
	l.breaks("a", errors.New("connection reset"))
	if err := l.check(); err == nil || !strings.Contains(err.Error(), "a is incomplete: connection reset") {
		t.Errorf("an incomplete timeline: %v", err)
	}
}
