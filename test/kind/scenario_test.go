//go:build kind

package kind

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

// The durations of the manifests.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second

	patience = 3 * time.Minute // for one step, on a busy machine
)

// site is where the replicas are: three of them, as a Deployment keeps them.
type site interface {
	// start starts them, and Redis.
	start(ctx context.Context) error
	// replicas returns the names of those that are meant to stay.
	replicas(ctx context.Context) ([]string, error)
	// stop asks one to end, as the deletion of its Pod does.
	stop(ctx context.Context, replica string) error
	// kill ends one with SIGKILL, and returns when it was dead: on a busy machine that takes a while.
	kill(ctx context.Context, replica string) (time.Time, error)
	// isolate takes Redis away from one, without a word, until heal.
	isolate(ctx context.Context, replica string) (heal func() error, err error)
	// rollout replaces all of them by a rolling update, and returns when it is complete.
	rollout(ctx context.Context) error
	// drain has the node of one moved away from, and returns when all replicas are elsewhere.
	drain(ctx context.Context, replica string) error
	// close removes everything.
	close(ctx context.Context) error
	// said is what all replicas have said so far.
	said() *timeline
}

func TestSingle(t *testing.T)  { scenario(t, "single", 1) }
func TestRedlock(t *testing.T) { scenario(t, "redlock", 3) }

// story is one deployment and what happens to its leaders.
type story struct {
	site
	name   string
	leader *term
}

func scenario(t *testing.T, name string, servers int) {
	s := &story{site: newSite(t, name, servers), name: name}
	feature := features.New(name).
		Assess("three replicas start", s.step("start", s.begins)).
		Assess("the leader is asked to end", s.step("delete", s.deleted)).
		Assess("the leader is killed", s.step("kill", s.isKilled)).
		Assess("the leader is cut off from Redis", s.step("isolate", s.isIsolated)).
		Assess("a rolling update", s.step("rollout", s.isRolledOut)).
		Assess("the leader's node is drained", s.step("drain", s.isDrained)).
		Teardown(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			t.Logf("what the replicas said:\n%s", s.said())
			if err := s.close(context.WithoutCancel(ctx)); err != nil {
				t.Error(err)
			}
			return ctx
		}).
		Feature()
	environment.Test(t, feature)
}

// step gives one step its time, and checks what must hold after each.
func (s *story) step(what string, do func(ctx context.Context) error) features.Func {
	return func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
		t.Helper()
		bounded, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := do(bounded)
		if err == nil {
			err = s.said().judge(bounded)
		}
		if err != nil {
			t.Fatalf("%s, %s: %v", s.name, what, err)
		}
		return ctx
	}
}

func (s *story) begins(ctx context.Context) (err error) {
	if err := s.start(ctx); err != nil {
		return err
	}
	s.leader, err = s.said().leader(ctx, nil)
	return err
}

// settle waits until there are three replicas, and the followers wait for a release: client-go has one look again a
// RetryPeriod after it has seen a leader for the first time, and waits from then on.
func (s *story) settle(ctx context.Context) error {
	for {
		names, err := s.replicas(ctx)
		if err != nil {
			return err
		}
		if len(names) == 3 {
			return sleep(ctx, 3*retryPeriod)
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("there are %d replicas: %w", len(names), err)
		}
	}
}

// next waits for the term after the present leader's.
func (s *story) next(ctx context.Context) (before *term, err error) {
	before = s.leader
	s.leader, err = s.said().leader(ctx, before)
	if err != nil {
		return nil, err
	}
	for _, t := range s.said().terms() { // with its end
		if t.began.Equal(before.began) {
			before = t
		}
	}
	return before, nil
}

func (s *story) deleted(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	asked := time.Now()
	if err := s.stop(ctx, s.leader.replica); err != nil {
		return err
	}
	before, err := s.next(ctx)
	if err != nil {
		return err
	}
	figures.add(s.name, "deletion of the leader: from its last work to the next leader's first", s.leader.began.Sub(before.ended))
	figures.add(s.name, "deletion of the leader: from the request to the next leader's first work", s.leader.began.Sub(asked))
	if s.leader.epoch != before.epoch+1 {
		return fmt.Errorf("epoch %d came after %d", s.leader.epoch, before.epoch)
	}
	if gap := s.leader.began.Sub(before.ended); gap > time.Second {
		return fmt.Errorf("nobody led for %v after a graceful end", gap)
	}
	return nil
}

func (s *story) isKilled(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	killed, err := s.kill(ctx, s.leader.replica)
	if err != nil {
		return err
	}
	if _, err := s.next(ctx); err != nil {
		return err
	}
	took := s.leader.began.Sub(killed)
	figures.add(s.name, "SIGKILL of the leader: to the next leader's first work, the TTL is 15s", took)
	if took > leaseDuration+time.Second {
		return fmt.Errorf("the takeover took %v", took)
	}
	return nil
}

func (s *story) isIsolated(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	heal, err := s.isolate(ctx, s.leader.replica)
	if err != nil {
		return err
	}
	cut := time.Now()
	before, err := s.next(ctx) // which has ended before, or the timeline fails
	if err := heal(); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	figures.add(s.name, "leader cut off from Redis: until it stopped", before.ended.Sub(cut))
	figures.add(s.name, "leader cut off from Redis: until the next leader's first work", s.leader.began.Sub(cut))
	if d := before.ended.Sub(cut); d > leaseDuration {
		return fmt.Errorf("a leader without Redis went on for %v", d)
	}
	return nil
}

func (s *story) isRolledOut(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	old, err := s.replicas(ctx)
	if err != nil {
		return err
	}
	before := s.leader
	if err := s.rollout(ctx); err != nil {
		return err
	}
	young, err := s.replicas(ctx)
	if err != nil {
		return err
	}
	for _, name := range young {
		for _, gone := range old {
			if name == gone {
				return fmt.Errorf("%s is still there after the update", name)
			}
		}
	}
	if s.leader, err = s.said().leader(ctx, before); err != nil {
		return err
	}
	var leaderless time.Duration
	terms := s.said().terms()
	for i, t := range terms[1:] {
		if t.began.After(before.began) {
			leaderless += t.began.Sub(terms[i].ended)
		}
	}
	figures.add(s.name, "rolling update of three replicas: time without a leader, in all", leaderless)
	if leaderless > leaseDuration {
		return fmt.Errorf("nobody led for %v", leaderless)
	}
	return nil
}

func (s *story) isDrained(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	if err := s.drain(ctx, s.leader.replica); err != nil {
		return err
	}
	before, err := s.next(ctx)
	if err != nil {
		return err
	}
	figures.add(s.name, "node drained: from the leader's last work to the next leader's first", s.leader.began.Sub(before.ended))
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
