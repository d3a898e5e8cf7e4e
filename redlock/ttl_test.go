package redlock_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/redlock"
)

// TTL is what a majority has: neither a node that lost the key nor one that is silent changes it.
func TestTTLIsTheMajoritys(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var nodes []redlock.Node
				var links []*bubble.Link
				var drop func()
				for range n {
					server, _ := bubble.Redis(t)
					links = append(links, bubble.NewLink(server))
					nodes = append(nodes, links[len(links)-1].Client(t))
					drop = func() { server.Del("k") }
				}
				m, err := redlock.New(nodes...)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				want := func(d time.Duration) {
					t.Helper()
					if left, err := m.TTL(t.Context(), "k"); err != nil || left != d {
						t.Errorf("%v left, want %v: %v", left, d, err)
					}
				}
				want(0)
				l := m.NewLock("k", redlock.WithExpiry(time.Minute))
				if err := l.TryLock(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				time.Sleep(20 * time.Second)
				want(40 * time.Second)
				if n == 3 {
					drop() // on the last one
					want(40 * time.Second)
					links[0].Silence()
					if _, err := m.TTL(t.Context(), "k"); !errors.Is(err, redlock.ErrInconclusive) {
						t.Errorf("one has it, one does not, one is silent: %v", err)
					}
					links[0].Mend()
				}
				time.Sleep(40 * time.Second)
				want(0)
			})
		})
	}
}

func TestLastToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := bubble.Redis(t)
		m, err := redlock.NewSingle(client())
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if last, err := m.LastToken(t.Context(), "c"); err != nil || last != 0 {
			t.Errorf("before the first: %d, %v", last, err)
		}
		l := m.NewLock("k", redlock.WithFencingToken("c"))
		for range 3 {
			if err := l.TryLock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := l.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if last, err := m.LastToken(t.Context(), "c"); err != nil || last != 3 {
			t.Errorf("after three: %d, %v", last, err)
		}
		server.Set("c", "x")
		if _, err := m.LastToken(t.Context(), "c"); err == nil {
			t.Error("no error for a counter that is none")
		}
	})
}
