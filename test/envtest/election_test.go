//go:build envtest

package envtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ndyakov/go-redlock/internal/redistest"
)

// Of several processes one acts: after a start, after a leader that was asked to end, and after one that crashed.
func TestExactlyOneActs(t *testing.T) {
	inBoth(t, short, func(t *testing.T, w *world) {
		w.startN(3, byRedis)
		first := w.log.leaderAfter(t, 0).by
		w.work(5, first)

		at := first.terminate()
		second := w.log.leaderAfter(t, at).by
		w.work(5, second)
		if e := first.awaitExit(); e.Error != "" {
			t.Errorf("the first leader ended with %s", e.Error)
		}

		w.awaitListeners(1)
		at, left := crash(w, second)
		takeover := w.log.leaderAfter(t, at)
		third := takeover.by
		if took := time.Duration(takeover.At - at); took > left+3*short.Retry { // measured by TestCrashTakeover
			t.Errorf("the takeover took %v, with %v left of the TTL", took, left)
		}
		w.work(5, third)
		if e := third.epoch(); e != 3 {
			t.Errorf("the epoch of the third term is %d", e)
		}
	})
}

// crash kills the leader p, and returns when it was gone, and how long after that somebody else can be elected.
func crash(w *world, p *process) (at int64, left time.Duration) {
	w.t.Helper()
	w.kill(p)
	at = now()
	time.Sleep(50 * time.Millisecond) // for the servers to execute what it had sent; of a renewal some may have got nothing
	var ends []time.Duration
	for _, s := range w.redis {
		ttl, err := s.Client().PTTL(w.t.Context(), w.leaseKey()).Result()
		if err != nil || ttl <= 0 {
			w.t.Fatalf("what is left of the lease of a leader that was killed: %v, %v", ttl, err)
		}
		ends = append(ends, ttl+time.Duration(now()-at))
	}
	slices.Sort(ends)
	return at, ends[len(ends)/2] // a majority is free
}

// A leader whose work takes its time to end releases the lease after that: the next one begins then, and not before.
func TestWorkEndsBeforeTheNextBegins(t *testing.T) {
	t.Parallel()
	inBoth(t, short, func(t *testing.T, w *world) {
		linger := 2 * short.Lease
		first := w.start(byRedis, func(p *plan) { p.Linger = linger })
		first.await("leading")
		w.start(byRedis)
		w.awaitListeners(1)
		at := first.terminate()
		next := w.log.leaderAfter(t, at)
		ended := first.await("stopped leading")
		if next.At < ended.At {
			t.Errorf("the next leader began %v before the end", time.Duration(ended.At-next.At))
		}
		if took := time.Duration(ended.At - at); took < linger {
			t.Errorf("the work ended after %v: it shows nothing", took)
		}
		if e := first.awaitExit(); e.Error != "" {
			t.Errorf("the first leader ended with %s", e.Error)
		}
	})
}

// Redis is away: the leader stops before LeaseDuration is over, and afterwards one leads under a higher epoch. When it comes
// back empty, it takes a candidate that remembers; one that starts only then has nothing to remember, see FenceFloor.
func TestLossOfRedis(t *testing.T) {
	t.Parallel()
	for how, fault := range map[string]struct {
		away, back func(*redistest.Server)
		replace    bool // the leader, while Redis is away
	}{
		"stopped":          {(*redistest.Server).Stop, (*redistest.Server).Continue, true},
		"restarted, empty": {(*redistest.Server).Kill, (*redistest.Server).RestartEmpty, false},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			inBoth(t, short, func(t *testing.T, w *world) {
				w.startN(2, byRedis)
				first := w.log.leaderAfter(t, 0)
				w.awaitListeners(1) // the other has seen the first one's epoch
				for _, s := range w.quorum() {
					fault.away(s)
				}
				at := now() // no renewal after this
				stopped := first.by.await("stopped leading")
				if took := time.Duration(stopped.At - at); took >= short.Lease {
					t.Errorf("the leader stopped %v after the loss of Redis", took)
				}
				if e := first.by.awaitExit(); e.Error == "" {
					t.Error("the manager that lost its lease ended without an error")
				}
				if fault.replace {
					w.start(byRedis)
				}
				time.Sleep(short.Lease)
				back := now()
				for _, s := range w.quorum() {
					fault.back(s)
				}
				next := w.log.leaderAfter(t, at)
				if next.At < back {
					t.Error("somebody was elected without Redis")
				}
				if next.Epoch <= first.Epoch {
					t.Errorf("epoch %d came after %d", next.Epoch, first.Epoch)
				}
				w.work(3, next.by)
			})
		})
	}
}

// The lease is deleted under a leader: its manager ends with an error at its next renewal, and the next term has
// a higher epoch. (Until that renewal somebody else could acquire: followers that wait look at the end of the TTL.)
func TestDeletedLease(t *testing.T) {
	inBoth(t, short, func(t *testing.T, w *world) {
		w.startN(2, byRedis)
		first := w.log.leaderAfter(t, 0)
		w.work(1, first.by)
		w.awaitListeners(1)
		at := now()
		for _, s := range w.redis {
			s.Client().Del(t.Context(), w.leaseKey())
		}
		stopped := first.by.await("stopped leading")
		if took := time.Duration(stopped.At - at); took > short.Retry+300*time.Millisecond {
			t.Errorf("the leader stopped after %v", took)
		}
		if e := first.by.awaitExit(); !strings.Contains(e.Error, "lease lost") {
			t.Errorf("the manager ended with %q", e.Error)
		}
		next := w.log.leaderAfter(t, at)
		if next.Epoch != first.Epoch+1 {
			t.Errorf("epoch %d came after %d", next.Epoch, first.Epoch)
		}
	})
}

// The API server is away. What Redis elects leads on, and works again when the API server is back; what a
// Kubernetes Lease elects ends.
func TestLossOfTheAPIServer(t *testing.T) {
	t.Parallel()
	for by, survives := range map[lockKind]bool{byRedis: true, byLease: false} {
		t.Run(string(by), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, short)
			proxy, path := proxied(t)
			p := w.start(by, func(p *plan) { p.Kubeconfig = path })
			p.await("leading")
			w.work(1, p)

			proxy.Refuse()
			ctx, cancel := context.WithTimeout(t.Context(), 2*short.Lease)
			defer cancel()
			select {
			case <-p.exited:
			case <-ctx.Done():
			}
			proxy.Accept()
			if lives := ctx.Err() != nil; lives != survives {
				t.Fatalf("still there after %v: %v, want %v", 2*short.Lease, lives, survives)
			}
			if survives {
				w.work(1, p)
			}
		})
	}
}
