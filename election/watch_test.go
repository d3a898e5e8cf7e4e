package election

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestWatchTellsEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		h := newHistory()
		m, err := redlock.NewSingle(bubble.NewLink(server).Client(t))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := Watch(ctx, m, "ns", "name")
		want := func(identity string, epoch uint64, within time.Duration) {
			t.Helper()
			select {
			case l := <-seen:
				if l.Identity != identity || l.Epoch != epoch {
					t.Fatalf("Watch tells %+v, want %s under %d", l, identity, epoch)
				}
			case <-time.After(within):
				t.Fatalf("Watch tells nothing, want %s under %d: %v", identity, epoch, h)
			}
		}
		want("", 0, time.Second)
		time.Sleep(time.Minute)
		a := newCandidate(t, h, server, "a").run()
		want("a", 1, 1010*time.Millisecond)
		time.Sleep(time.Minute)
		a.end()
		want("", 0, 10*time.Millisecond)
		b := newCandidate(t, h, server, "b").run()
		want("b", 2, 50*time.Millisecond)
		time.Sleep(time.Minute)
		select {
		case l := <-seen:
			t.Errorf("Watch tells %+v, and nothing has changed", l)
		default:
		}

		// A slow reader finds the latest only; a crash is seen when its TTL is over.
		newCandidate(t, h, server, "c").run()
		synctest.Wait()
		b.link.Silence()
		time.Sleep(time.Minute)
		want("c", 3, time.Millisecond)

		cancel()
		if l, ok := <-seen; ok {
			t.Errorf("Watch tells %+v after its end", l)
		}
	})
}

func TestWatchOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, _ := bubble.Redis(t)
		m, err := redlock.NewSingle(bubble.NewLink(server).Client(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []<-chan Leader{Watch(t.Context(), nil, "ns", "name"), Watch(t.Context(), m, "ns", "")} {
			if _, ok := <-c; ok {
				t.Error("it tells something")
			}
		}
		c := Watch(t.Context(), m, "ns", "name")
		<-c
		_ = m.Close()
		if _, ok := <-c; ok {
			t.Error("it tells something of a manager that is closed")
		}
	})
}
