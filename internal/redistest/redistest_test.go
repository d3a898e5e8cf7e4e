package redistest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func dial(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: 5 * time.Second})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestServersAreIndependent(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range StartN(t, 3) {
		info, err := s.Client().Info(t.Context(), "server").Result()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(info) {
			if strings.HasPrefix(line, "run_id:") {
				seen[line] = true
			}
		}
	}
	if len(seen) != 3 {
		t.Fatalf("three servers have %d run ids", len(seen))
	}
}

func TestRestartKeepsWhatIsOnDisk(t *testing.T) {
	s := Start(t, WithAOF())
	ctx := t.Context()
	if err := s.Client().Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	if v := dial(t, s.Addr()).Get(ctx, "k").Val(); v != "v" {
		t.Fatalf("after a restart with its data k is %q", v)
	}
	s.RestartEmpty()
	if n := dial(t, s.Addr()).Exists(ctx, "k").Val(); n != 0 {
		t.Fatal("after an empty restart k is there")
	}
}

func TestAStoppedServerAnswersWhenItContinues(t *testing.T) {
	s := Start(t)
	c := dial(t, s.Addr())
	s.Stop()
	answered := make(chan error, 1)
	go func() { answered <- c.Ping(context.Background()).Err() }()
	select {
	case err := <-answered:
		t.Fatalf("a stopped server answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	s.Continue()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s.Kill() // must work on a stopped process
}

func TestHeldTrafficIsDeliveredInOrder(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := dial(t, p.Addr())
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.Hold(ToServer)
	done := make(chan error, 1)
	go func() { done <- c.Set(context.Background(), "k", "v", 0).Err() }()
	time.Sleep(50 * time.Millisecond)
	if s.Client().Exists(t.Context(), "k").Val() != 0 {
		t.Fatal("a held command arrived")
	}
	p.Release(ToServer)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestHeldCommandsArriveAfterTheClientIsGone(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ReadTimeout: 50 * time.Millisecond})
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.HoldMatching(ToServer, "late")
	if err := c.Set(t.Context(), "late", "v", 0).Err(); err == nil {
		t.Fatal("a held command was answered")
	}
	if err := c.Set(t.Context(), "other", "v", 0).Err(); err != nil {
		t.Fatalf("another connection is held as well: %v", err)
	}
	c.Close()
	p.Release(ToServer)
	for s.Client().Exists(t.Context(), "late").Val() == 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestCutOnReplyLosesTheReplyAlone(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := dial(t, p.Addr())
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.CutOnReply("once")
	if err := c.Set(t.Context(), "once", "v", 0).Err(); err == nil {
		t.Fatal("the reply was not lost")
	}
	if v := s.Client().Get(t.Context(), "once").Val(); v != "v" {
		t.Fatal("the command was not executed")
	}
	if err := c.Set(t.Context(), "once", "v", 0).Err(); err != nil {
		t.Fatalf("the second one failed as well: %v", err)
	}
}

func TestDelayDropCutAndRefuse(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ReadTimeout: 200 * time.Millisecond, DialerRetries: 1})
	defer c.Close()
	ctx := t.Context()
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	p.Delay(ToClient, 50*time.Millisecond)
	if start := time.Now(); c.Ping(ctx).Err() != nil || time.Since(start) < 50*time.Millisecond {
		t.Fatalf("a reply delayed by 50ms took %v", time.Since(start))
	}
	p.Delay(ToClient, 0)
	p.Drop(ToServer)
	if c.Ping(ctx).Err() == nil {
		t.Fatal("a dropped command was answered")
	}
	p.Release(ToServer)
	p.Refuse()
	if c.Ping(ctx).Err() == nil {
		t.Fatal("a refused connection was answered")
	}
	p.Accept()
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
}
