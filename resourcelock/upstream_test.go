package resourcelock_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/leaderelection"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/resourcelock"
)

// The scenarios of client-go's leaderelection_test.go over the Redis lock: docs/client-go-scenarios.md says which is
// which. There they begin with records that a client has observed; here with what is in Redis.

// what a candidate finds, and what is to come of it within a second.
type acquisition struct {
	found       func(t *testing.T, s servers)
	leads       bool
	holder      string // as it sees it then
	transitions int
}

func (a acquisition) test(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		if a.found != nil {
			a.found(t, s)
		}
		baz := newCandidate(t, s.manager(t), "baz").run(t)
		time.Sleep(time.Second)
		if got := baz.elector.IsLeader(); got != a.leads {
			t.Errorf("leads: %v", got)
		}
		if got := baz.elector.GetLeader(); got != a.holder {
			t.Errorf("sees %q", got)
		}
		if r := get(t, baz.lock); len(s) == 1 && r.LeaderTransitions != a.transitions {
			t.Errorf("%d transitions, want %d", r.LeaderTransitions, a.transitions)
		}
		baz.mu.Lock()
		defer baz.mu.Unlock()
		if !slices.Equal(baz.leaders, []string{a.holder}) {
			t.Errorf("was told of %q", baz.leaders)
		}
	})
}

// bing leads, and renews no more.
func bing(t *testing.T, s servers) { crashed(t, s, "bing") }

// released is what is left of bing's term after its release.
func released(t *testing.T, s servers) {
	t.Helper()
	lock := newCandidate(t, s.manager(t), "bing").lock
	if err := lock.Create(t.Context(), recordOf(lock, leaseDuration)); err != nil {
		t.Fatal(err)
	}
	if err := lock.Update(t.Context(), rl.LeaderElectionRecord{}); err != nil {
		t.Fatal(err)
	}
}

func TestAcquireFromNoObject(t *testing.T) {
	acquisition{leads: true, holder: "baz"}.test(t)
}

func TestAcquireFromUnledObject(t *testing.T) {
	acquisition{found: released, leads: true, holder: "baz", transitions: 1}.test(t)
}

func TestDoNotAcquireFromLedObject(t *testing.T) {
	acquisition{found: bing, leads: false, holder: "bing"}.test(t)
}

// It was led, and its TTL passed before anybody looked.
func TestAcquireFromLedObjectThatIsOver(t *testing.T) {
	acquisition{
		found:       func(t *testing.T, s servers) { bing(t, s); time.Sleep(leaseDuration) },
		leads:       true,
		holder:      "baz",
		transitions: 1,
	}.test(t)
}

// It is led, and its TTL passes while a candidate looks on.
func TestAcquireFromLedObjectWhenItIsOver(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		bing(t, s)
		baz := newCandidate(t, s.manager(t), "baz").run(t)
		time.Sleep(leaseDuration - time.Second)
		if baz.elector.GetLeader() != "bing" || len(baz.epochs()) > 0 {
			t.Fatalf("it sees %q before the TTL is over", baz.elector.GetLeader())
		}
		time.Sleep(3 * retryPeriod)
		if !baz.elector.IsLeader() || len(s) == 1 && get(t, baz.lock).LeaderTransitions != 1 {
			t.Errorf("it sees %q, %d transitions", baz.elector.GetLeader(), get(t, baz.lock).LeaderTransitions)
		}
	})
}

// It was just seen to be led, and is released: client-go need not wait for its own idea of that term's end.
func TestAcquireFromObjectThatWasJustLed(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		bing := newCandidate(t, s.manager(t), "bing").run(t)
		time.Sleep(time.Second)
		baz := newCandidate(t, s.manager(t), "baz").run(t)
		time.Sleep(time.Second)
		bing.stop()
		time.Sleep(3 * retryPeriod)
		if !baz.elector.IsLeader() {
			t.Errorf("it sees %q", baz.elector.GetLeader())
		}
	})
}

func TestRenewAnObject(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		baz := newCandidate(t, s.manager(t), "baz").run(t)
		time.Sleep(10 * leaseDuration)
		r := get(t, baz.lock)
		if !baz.elector.IsLeader() || r.HolderIdentity != "baz" || r.LeaderTransitions != 0 || time.Since(r.RenewTime.Time) > 2*retryPeriod {
			t.Errorf("leads: %v, record %+v", baz.elector.IsLeader(), r)
		}
	})
}

// A release ends with an empty holder, which the elector and others see, and takes a Get and an Update.
func TestReleaseALease(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		ops := new(opsLock)
		baz := newCandidate(t, s.manager(t), "baz", ops.record).run(t)
		time.Sleep(time.Second)
		start := time.Now()
		baz.stop()
		<-baz.done
		if got := ops.since(start); !slices.Equal(got, []string{"get", "update"}) {
			t.Errorf("calls %q", got)
		}
		if baz.elector.GetLeader() != "" || get(t, baz.lock).HolderIdentity != "" || s.hasLease() {
			t.Errorf("it sees %q, and the record says %q", baz.elector.GetLeader(), get(t, baz.lock).HolderIdentity)
		}
	})
}

// Another took over before the release. client-go repeats a release after a Conflict: there is none, and the
// other's lease stays.
func TestReleaseIsNotRepeated(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		ops := new(opsLock)
		baz := newCandidate(t, s.manager(t), "baz", ops.record).run(t)
		time.Sleep(time.Second)
		s.deleteLease()
		bing(t, s)
		start := time.Now()
		baz.stop()
		<-baz.done
		if got := ops.since(start); len(got) > 3 {
			t.Errorf("calls %q", got)
		}
		if got := get(t, baz.lock).HolderIdentity; got != "bing" {
			t.Errorf("the record says %q", got)
		}
	})
}

// The elector is cancelled with a renewal, or the look after a failed one, under way: it still releases, and says
// when it became the leader and when it stopped.
func TestReleaseOnCancellation(t *testing.T) {
	for _, during := range []string{"update", "get"} {
		t.Run(during, func(t *testing.T) {
			inBoth(t, func(t *testing.T, s servers) {
				events, renewals := new(eventLog), new(renewalPlan)
				if during == "get" {
					renewals.failing.Store(2)
				}
				var baz *candidate
				ops := &opsLock{
					before: func(op string) {
						if n := renewals.begin(op); op == during && n == 2 {
							baz.stop()
						}
					},
					after: renewals.end,
				}
				baz = newCandidate(t, s.manager(t), "baz", events.record, ops.record)
				s.refuseRenewals(renewals)
				baz.run(t)
				<-baz.done
				synctest.Wait()
				if s.hasLease() {
					t.Error("it was not released")
				}
				if got, want := events.read(), []string{"baz became leader", "baz stopped leading"}; !slices.Equal(got, want) {
					t.Errorf("events %q, want %q", got, want)
				}
			})
		})
	}
}

// A leader renews without a look at the record, until a renewal fails.
func TestFastPath(t *testing.T) {
	for _, c := range []struct {
		name string
		fail int32 // the renewal that fails
		want []string
	}{
		{"after the acquisition", 0, []string{"get", "create", "update", "update"}},
		{"slow after a failure", 2, []string{"get", "create", "update", "update", "get", "update", "update"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBoth(t, func(t *testing.T, s servers) {
				renewals := new(renewalPlan)
				renewals.failing.Store(c.fail)
				ops := &opsLock{before: func(op string) { renewals.begin(op) }, after: renewals.end}
				baz := newCandidate(t, s.manager(t), "baz", ops.record)
				s.refuseRenewals(renewals)
				start := time.Now()
				baz.run(t)
				for len(ops.since(start)) < len(c.want) {
					time.Sleep(100 * time.Millisecond)
				}
				if got := ops.since(start); !slices.Equal(got[:len(c.want)], c.want) {
					t.Errorf("calls %q, want %q", got, c.want)
				}
			})
		})
	}
}

// Health is asked for while the elector leads, loses, and leads again.
func TestHealthzAdaptor(t *testing.T) {
	inBoth(t, func(t *testing.T, s servers) {
		health := leaderelection.NewLeaderHealthzAdaptor(time.Second)
		baz := newCandidate(t, s.manager(t), "baz", func(_ *resourcelock.Config, lec *leaderelection.LeaderElectionConfig) {
			lec.WatchDog = health
		})
		health.SetLeaderElection(baz.elector)
		baz.run(t)
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		asking.Go(func() {
			for ctx.Err() == nil {
				if err := health.Check(nil); err != nil {
					t.Errorf("unhealthy: %v", err)
				}
				time.Sleep(time.Millisecond)
			}
		})
		time.Sleep(3 * retryPeriod)
		s.deleteLease()
		<-baz.done
		baz.run(t)
		time.Sleep(3 * retryPeriod)
		cancel()
		asking.Wait()
	})
}

// renewalPlan counts an elector's Updates, of which one is to fail.
type renewalPlan struct{ count, failing atomic.Int32 }

func (r *renewalPlan) begin(op string) (n int32) {
	if op == "update" {
		r.count.Add(1)
	}
	return r.count.Load()
}

func (r *renewalPlan) end(op string, err error) {
	if op == "update" && err != nil {
		r.failing.Store(0) // it has
	}
}

// refuseRenewals has the servers refuse the renewal that is to fail, however often it is sent.
func (s servers) refuseRenewals(r *renewalPlan) {
	for _, m := range s {
		m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
			if f := r.failing.Load(); f == 0 || f != r.count.Load() || !isRenewal(cmd, args) {
				return false
			}
			c.WriteError("ERR refused")
			return true
		})
	}
}

// isRenewal tells a renewal by its form: script, 1, key, token, TTL in milliseconds.
func isRenewal(cmd string, args []string) bool {
	if !strings.EqualFold(cmd, "EVALSHA") && !strings.EqualFold(cmd, "EVAL") || len(args) != 5 {
		return false
	}
	_, err := strconv.Atoi(args[4])
	return err == nil
}

// eventLog keeps what is recorded.
type eventLog struct {
	mu    sync.Mutex
	lines []string
}

func (e *eventLog) Eventf(_ runtime.Object, _, _, _ string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, args[0].(string))
}

func (e *eventLog) read() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.lines)
}

func (e *eventLog) record(cfg *resourcelock.Config, _ *leaderelection.LeaderElectionConfig) {
	cfg.EventRecorder = e
}
