//go:build envtest

package envtest

import (
	"testing"
	"time"

	"github.com/ndyakov/go-redlock/internal/record"
)

// The defaults of controller-runtime, and leaders that are asked to end: with Redis and FastHandover the next one works
// within milliseconds, with a Lease at its next RetryPeriod. Epochs go up by one each time.
func TestGracefulHandover(t *testing.T) {
	for _, c := range []struct {
		name    string
		by      lockKind
		servers int
		n       int
		limit   time.Duration // of the median
	}{
		{"single", byRedis, 1, 30, 50 * time.Millisecond},
		{"Redlock", byRedis, 3, 20, 50 * time.Millisecond},
		{"Lease", byLease, 0, 20, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, c.servers, full)
			w.startN(3, c.by)
			leader := w.log.leaderAfter(t, 0)
			var asked, ended []time.Duration
			for i := range c.n {
				w.awaitListeners(1)
				if c.by == byLease { // at any point of a follower's RetryPeriod
					time.Sleep(full.Retry + time.Duration(i)*full.Retry/time.Duration(c.n))
				}
				at := leader.by.terminate()
				next := w.log.leaderAfter(t, at)
				asked = append(asked, time.Duration(next.At-at))
				ended = append(ended, time.Duration(next.At-leader.by.await("stopped leading").At))
				if c.by == byRedis {
					w.checkTerm(next, uint64(i+2))
				}
				if e := leader.by.awaitExit(); e.Error != "" {
					t.Fatalf("handover %d: the leader ended with %s", i, e.Error)
				}
				leader = next
				w.start(c.by)
			}
			lock := string(c.by) + ", " + c.name
			if c.by == byLease {
				lock = c.name
			}
			median := times.add(lock, "SIGTERM to the leader", w.durations, asked)
			times.add(lock, "the end of the leader's work", w.durations, ended)
			if c.limit != 0 && median > c.limit {
				t.Errorf("the median of %d handovers is %v, want at most %v", c.n, median, c.limit)
			}
		})
	}
}

// checkTerm checks that e leads the term of this epoch, and that the record says the same.
func (w *world) checkTerm(e entry, epoch uint64) {
	w.t.Helper()
	h := w.holder()
	r := record.Decode(h, w.durations.Lease)
	if e.Epoch != epoch || h.FencingToken != epoch || r.LeaderTransitions != int(epoch-1) {
		w.t.Fatalf("in term %d %s leads under epoch %d; the lease says %d, with %d transitions",
			epoch, e.by.id, e.Epoch, h.FencingToken, r.LeaderTransitions)
	}
}

// Leaders that crash: with Redis the next one works when the TTL is over, with a Lease some RetryPeriods after.
func TestCrashTakeover(t *testing.T) {
	for _, c := range []struct {
		name    string
		by      lockKind
		servers int
	}{
		{"single", byRedis, 1},
		{"Redlock", byRedis, 3},
		{"Lease", byLease, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const n = 5
			w := newWorld(t, c.servers, short)
			w.startN(3, c.by)
			leader := w.log.leaderAfter(t, 0)
			var killed, expired []time.Duration
			for range n {
				w.awaitListeners(1)
				time.Sleep(2 * short.Retry)
				var at int64
				var left time.Duration
				if c.by == byRedis {
					at, left = crash(w, leader.by)
				} else {
					w.kill(leader.by)
					at = now()
				}
				next := w.log.leaderAfter(t, at)
				killed = append(killed, time.Duration(next.At-at))
				expired = append(expired, time.Duration(next.At-at)-left)
				t.Logf("%s: %v after the SIGKILL, with %v left of the TTL", next.by.id, time.Duration(next.At-at), left)
				leader = next
				w.start(c.by)
			}
			if c.by == byLease {
				times.add(c.name, "SIGKILL of the leader", w.durations, killed)
				return
			}
			lock := string(c.by) + ", " + c.name
			times.add(lock, "SIGKILL of the leader", w.durations, killed)
			times.add(lock, "the end of the TTL that was left after SIGKILL", w.durations, expired)
			// They are sorted by now. The last may be late: it does not take much for a busy machine to lose 100ms.
			if late := expired[n-2]; late > 100*time.Millisecond {
				t.Errorf("takeovers took %v longer than was left of the TTL", expired)
			}
		})
	}
}
