//go:build chaos && linux

package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

const checkTimeout = 2 * time.Minute // of one history; it takes a second or so

// history has what all candidates of an election told, and what was done to them.
type history struct {
	mu     sync.Mutex
	events []told
	leader int // the candidate that began to lead last
	notes  []string
	began  int64
}

// told is an event, and whose.
type told struct {
	event
	by     string // candidate.life
	number int    // of the candidate
}

func newHistory() *history { return &history{began: now()} }

func (h *history) add(e told) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
	switch e.What {
	case acquires:
		h.leader = e.number
		h.notes = append(h.notes, h.line(e.Return, "%s leads, epoch %d (it asked at %s)", e.by, e.Epoch, h.at(e.Call)))
	case wrong:
		h.notes = append(h.notes, h.line(now(), "FAULT: %s %s", e.by, e.Fault))
	}
}

func (h *history) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, h.line(now(), format, args...))
}

func (h *history) line(at int64, format string, args ...any) string {
	return h.at(at) + "  " + fmt.Sprintf(format, args...)
}

func (h *history) at(t int64) string { return fmt.Sprintf("%8.3fs", float64(t-h.began)/1e9) }

// String returns the timeline.
func (h *history) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.notes, "\n")
}

// led reports whether somebody has led since the time at.
func (h *history) led(at int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		if e.What == leads && e.Call >= at {
			return true
		}
	}
	return false
}

// last returns the candidate that began to lead last.
func (h *history) last() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leader
}

// count returns how often it was told.
func (h *history) count(w what) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events {
		if e.What == w {
			n++
		}
	}
	return n
}

// check looks for what must not be: with exclusive, two that lead at a time; in any case, an epoch that is not
// higher than an earlier one. It returns nil if there is no such thing, and leaves a picture of the history otherwise.
func (h *history) check(exclusive bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ops []porcupine.Operation
	clients := make(map[string]int)
	for _, e := range h.events {
		if e.What == wrong {
			return fmt.Errorf("%s %s", e.by, e.Fault)
		}
		if e.What == begins || e.What == leads && !exclusive {
			continue
		}
		if _, known := clients[e.by]; !known {
			clients[e.by] = len(clients)
		}
		ops = append(ops, porcupine.Operation{ClientId: clients[e.by], Input: e, Call: e.Call, Return: e.Return})
	}
	result, info := porcupine.CheckOperationsVerbose(register, ops, checkTimeout)
	if result == porcupine.Ok {
		return nil
	}
	picture := filepath.Join(os.TempDir(), fmt.Sprintf("chaos-%d.html", h.began))
	if err := porcupine.VisualizePath(register, info, picture); err != nil {
		picture = err.Error()
	}
	return fmt.Errorf("the history of %d operations is not linearizable (%s); a picture: %s", len(ops), result, picture)
}

// term is the state of the register: who leads, or led last.
type term struct {
	by    string
	epoch uint64
}

// register is the model of an election: an acquisition sets it to a higher epoch, and who leads finds his own in it.
var register = porcupine.Model{
	Init: func() any { return term{} },
	Step: func(state, input, _ any) (bool, any) {
		is, e := state.(term), input.(told)
		if e.What == acquires {
			return e.Epoch > is.epoch, term{e.by, e.Epoch}
		}
		return is == term{e.by, e.Epoch}, is
	},
	DescribeOperation: func(input, _ any) string {
		e := input.(told)
		return fmt.Sprintf("%s %s %d", e.by, e.What, e.Epoch)
	},
}

// reader has what one candidate writes added to the history, line by line. What a killed process has not written to the
// end is lost.
type reader struct {
	by      string
	number  int
	history *history
	begun   chan struct{} // closed when it begins
	buf     bytes.Buffer
}

func (h *history) reader(number int, by string) *reader {
	return &reader{by: by, number: number, history: h, begun: make(chan struct{})}
}

func (r *reader) Write(p []byte) (int, error) {
	r.buf.Write(p)
	for bytes.IndexByte(r.buf.Bytes(), '\n') >= 0 {
		line, _ := r.buf.ReadBytes('\n')
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			e = event{What: wrong, Fault: fmt.Sprintf("wrote %q", line)}
		}
		if e.What == begins {
			close(r.begun)
		}
		r.history.add(told{e, r.by, r.number})
	}
	return len(p), nil
}

// TestHistory gives the check histories that it must accept, and others that it must not.
func TestHistory(t *testing.T) {
	t.Parallel()
	op := func(by string, w what, epoch uint64, call, ret int64) told {
		return told{event{What: w, Epoch: epoch, Call: call, Return: ret}, by, 0}
	}
	for name, c := range map[string]struct {
		events            []told
		exclusive, epochs bool // whether it is accepted: with one leader at a time, and with epochs only
	}{
		"one after the other": {
			[]told{op("a", acquires, 1, 0, 1), op("a", leads, 1, 2, 3), op("b", acquires, 2, 1, 4), op("b", leads, 2, 5, 6)},
			true, true,
		},
		"two at a time": {
			[]told{op("a", acquires, 1, 0, 1), op("b", acquires, 2, 2, 3), op("b", leads, 2, 3, 4), op("a", leads, 1, 5, 6)},
			false, true,
		},
		"a look that takes so long that it may have been before": {
			[]told{op("a", acquires, 1, 0, 1), op("b", acquires, 2, 2, 3), op("b", leads, 2, 3, 4), op("a", leads, 1, 1, 6)},
			true, true,
		},
		"the same epoch twice": {
			[]told{op("a", acquires, 1, 0, 1), op("b", acquires, 1, 2, 3)}, false, false,
		},
		"a lower epoch later": {
			[]told{op("a", acquires, 3, 0, 1), op("b", acquires, 2, 2, 3)}, false, false,
		},
		"a lower epoch at the same time": {
			[]told{op("a", acquires, 3, 0, 4), op("b", acquires, 2, 2, 3)}, true, true,
		},
		"two at a time who saw each other's term end, and begin again": {
			[]told{
				op("a", acquires, 1, 0, 9), op("b", acquires, 2, 0, 9), op("a", leads, 1, 1, 2),
				op("b", leads, 2, 3, 4), op("a", leads, 1, 5, 6),
			},
			false, true,
		},
		"who says so himself": {
			[]told{{event{What: wrong, Fault: "is wrong"}, "a", 0}}, false, false,
		},
	} {
		h := newHistory()
		for _, e := range c.events {
			h.add(e)
		}
		if err := h.check(true); (err == nil) != c.exclusive {
			t.Errorf("%s, one at a time: %v", name, err)
		}
		if err := h.check(false); (err == nil) != c.epochs {
			t.Errorf("%s, epochs: %v", name, err)
		}
	}
}
