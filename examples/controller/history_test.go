package main

import (
	"strings"
	"testing"
	"time"
)

// at returns what a replica reports at some millisecond.
func at(ms int, replica, what string, epoch uint64) event {
	return event{At: time.UnixMilli(int64(ms)), Replica: replica, Event: what, Epoch: epoch}
}

func TestHistoryTellsWhatMustNotBe(t *testing.T) {
	first := []event{at(10, "a", leading, 1), at(20, "a", worked, 1)}
	for name, c := range map[string]struct {
		events  []event
		counted bool
		want    string // part of the error, "" for none
	}{
		"one leader":              {first, true, ""},
		"handover":                {append(first[:2:2], at(30, "a", stopped, 1), at(31, "b", leading, 2)), true, ""},
		"reports out of order":    {append(first[:2:2], at(31, "b", leading, 2), at(30, "a", stopped, 1)), true, ""},
		"takeover":                {append(first[:2:2], at(30, "a", exited, 0), at(31, "b", leading, 2)), true, ""},
		"two leaders":             {append(first[:2:2], at(31, "b", leading, 2)), true, "b leads while a does"},
		"overlap":                 {append(first[:2:2], at(33, "a", stopped, 1), at(31, "b", leading, 2)), true, "2ms before the end of a's term"},
		"work after the end":      {append(first[:2:2], at(25, "a", stopped, 1), at(31, "b", leading, 2), at(36, "a", worked, 1)), true, "a still worked 5ms after b"},
		"epoch left out":          {append(first[:2:2], at(30, "a", stopped, 1), at(31, "b", leading, 3)), true, "b leads under epoch 3; for term 2 it should be 2"},
		"epoch again":             {append(first[:2:2], at(30, "a", stopped, 1), at(31, "b", leading, 1)), true, "under epoch 1"},
		"first epoch must be one": {[]event{at(10, "a", leading, 0)}, true, "under epoch 0"},
		"Redlock has epochs":      {[]event{at(10, "a", leading, 0)}, false, "under epoch 0"},
		"Redlock may leave one":   {[]event{at(10, "a", leading, 2), at(30, "a", stopped, 2), at(31, "b", leading, 5)}, false, ""},
		"Redlock repeats none":    {[]event{at(10, "a", leading, 2), at(30, "a", stopped, 2), at(31, "b", leading, 2)}, false, "under epoch 2 after 2"},
	} {
		t.Run(name, func(t *testing.T) {
			var h history
			for _, e := range c.events {
				h.note(e)
			}
			err := h.check(c.counted)
			if c.want == "" && err != nil {
				t.Fatal(err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
