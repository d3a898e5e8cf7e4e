package election

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

func leadConfig(t *testing.T, link *bubble.Link) Config {
	t.Helper()
	m, err := redlock.NewSingle(link.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return Config{Manager: m, Namespace: "ns", Name: "name"}
}

func TestLeadRunsOnceAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		cfg := leadConfig(t, bubble.NewLink(server))
		failed := errors.New("failed")
		runs := 0
		err := Lead(t.Context(), cfg, func(ctx context.Context) error {
			runs++
			if epoch, ok := EpochFrom(ctx); !ok || epoch != 1 {
				t.Errorf("the epoch is %d, %v", epoch, ok)
			}
			time.Sleep(time.Minute)
			if ctx.Err() != nil {
				t.Error(context.Cause(ctx))
			}
			return failed
		})
		if !errors.Is(err, failed) || errors.Is(err, ErrLost) || runs != 1 {
			t.Errorf("Lead returned %v after %d runs", err, runs)
		}
		if server.Exists(leaseKey) {
			t.Error("the lease was not released")
		}
	})
}

func TestLeadThatLosesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		link := bubble.NewLink(server)
		cfg := leadConfig(t, link)
		runs := 0
		err := Lead(t.Context(), cfg, func(ctx context.Context) error {
			runs++
			server.Del(leaseKey)
			<-ctx.Done()
			time.Sleep(time.Minute)
			return nil
		})
		if !errors.Is(err, ErrLost) || runs != 1 || server.Exists(leaseKey) {
			t.Errorf("Lead returned %v after %d runs", err, runs)
		}
	})
}

func TestLeadWhoseTurnNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		newCandidate(t, h, server, "a").run()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := Lead(ctx, leadConfig(t, bubble.NewLink(server)), func(context.Context) error {
			t.Error("it leads")
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lead returned %v", err)
		}
	})
}

func TestLeadWaitsForItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := Lead(ctx, leadConfig(t, bubble.NewLink(server)), func(ctx context.Context) error {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, ErrStopping) || !errors.Is(cause, context.DeadlineExceeded) {
				t.Errorf("the cause is %v", cause)
			}
			time.Sleep(time.Minute)
			if !server.Exists(leaseKey) {
				t.Error("the lease was not kept")
			}
			return nil
		})
		if err != nil {
			t.Errorf("Lead returned %v", err)
		}
	})
}

func TestLeadWithBadInput(t *testing.T) {
	cfg := validConfig(t)
	if err := Lead(t.Context(), cfg, func(context.Context) error { return nil }); err == nil ||
		!strings.Contains(err.Error(), "OnStartedLeading") {
		t.Errorf("with OnStartedLeading: %v", err)
	}
	cfg.Callbacks = leaderelection.LeaderCallbacks{}
	if err := Lead(t.Context(), cfg, nil); err == nil {
		t.Error("without a function")
	}
	cfg.Name = ""
	if err := Lead(t.Context(), cfg, func(context.Context) error { return nil }); err == nil ||
		!strings.Contains(err.Error(), "Name") {
		t.Errorf("without a name: %v", err)
	}
}
