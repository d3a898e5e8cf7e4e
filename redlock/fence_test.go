package redlock_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// onBoth runs f against a real server and against miniredis: their Luas are not the same.
func onBoth(t *testing.T, f func(t *testing.T, c *redis.Client)) {
	t.Helper()
	t.Run("real", func(t *testing.T) { f(t, dial(t, redistest.Single(t))) })
	t.Run("miniredis", func(t *testing.T) { f(t, dial(t, miniredis.RunT(t).Addr())) })
}

func TestTokensGrowExactly(t *testing.T) {
	onBoth(t, func(t *testing.T, c *redis.Client) {
		m := manager(t, []redlock.Node{c}, redlock.Config{})
		for name, start := range map[string]uint64{
			"none": 0, "small": 41, "2^53-1": 1<<53 - 1, "2^53": 1 << 53, "2^53+1": 1<<53 + 1, "2^62+3": 1<<62 + 3,
		} {
			t.Run(name, func(t *testing.T) {
				counter := redistest.Key(t)
				if start > 0 {
					must(t, c.Set(t.Context(), counter, start, 0).Err())
				}
				for i := uint64(1); i <= 5; i++ {
					l := m.NewLock(redistest.Key(t), redlock.WithFencingToken(counter))
					must(t, l.TryLock(t.Context()))
					if l.FencingToken() != start+i {
						t.Fatalf("token %d after %d, want %d", l.FencingToken(), start+i-1, start+i)
					}
					h, held, err := m.Holder(t.Context(), l.Key())
					if !held || err != nil || h.FencingToken != l.FencingToken() {
						t.Errorf("Holder says %+v, %v, %v", h, held, err)
					}
					if last, err := m.LastToken(t.Context(), counter); last != start+i || err != nil {
						t.Errorf("LastToken says %d, %v", last, err)
					}
					must(t, l.Extend(t.Context(), time.Minute))
					must(t, l.Unlock(t.Context()))
					if l.FencingToken() != start+i {
						t.Errorf("after the release the token is %d", l.FencingToken())
					}
				}
				// The counter outlives every lease.
				if ttl := c.TTL(t.Context(), counter).Val(); ttl != -1 {
					t.Errorf("the counter's TTL is %v", ttl)
				}
			})
		}
	})
}

func TestTheLastTokenIsTheLast(t *testing.T) {
	onBoth(t, func(t *testing.T, c *redis.Client) {
		m := manager(t, []redlock.Node{c}, redlock.Config{})
		counter := redistest.Key(t)
		must(t, c.Set(t.Context(), counter, uint64(math.MaxInt64-1), 0).Err())
		l := m.NewLock(redistest.Key(t), redlock.WithFencingToken(counter))
		must(t, l.TryLock(t.Context()))
		if l.FencingToken() != math.MaxInt64 {
			t.Errorf("token %d", l.FencingToken())
		}
		must(t, l.Unlock(t.Context()))
		wantRefused(t, c, l, counter, strconv.FormatInt(math.MaxInt64, 10))
	})
}

func TestBadCounterIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, c *redis.Client) {
		m := manager(t, []redlock.Node{c}, redlock.Config{})
		for _, bad := range []string{
			"nonsense", "", "-1", "-9223372036854775808", "1.5", "1e3", "007", " 7", "0x10", "9223372036854775807",
			"9223372036854775808", "18446744073709551615", "99999999999999999999999999",
		} {
			t.Run("counter "+bad, func(t *testing.T) {
				counter := redistest.Key(t)
				must(t, c.Set(t.Context(), counter, bad, 0).Err())
				wantRefused(t, c, m.NewLock(redistest.Key(t), redlock.WithFencingToken(counter)), counter, bad)
			})
		}
		t.Run("list", func(t *testing.T) {
			counter := redistest.Key(t)
			must(t, c.RPush(t.Context(), counter, "x").Err())
			l := m.NewLock(redistest.Key(t), redlock.WithFencingToken(counter))
			if err := l.TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				t.Errorf("error is %v", err)
			}
			if c.Exists(t.Context(), l.Key()).Val() != 0 || c.Type(t.Context(), counter).Val() != "list" {
				t.Error("something was changed")
			}
		})
	})
}

// wantRefused fails the test unless l cannot be acquired because of its counter, and the counter stays as it is.
func wantRefused(t *testing.T, c *redis.Client, l *redlock.Lock, counter, value string) {
	t.Helper()
	for name, acquire := range map[string]func(context.Context) error{"TryLock": l.TryLock, "Lock": l.Lock} {
		begin := time.Now()
		err := acquire(t.Context())
		wantIs(t, err, redlock.ErrNotAcquired)
		if err == nil || !strings.Contains(err.Error(), "BADCOUNTER") || !strings.Contains(err.Error(), counter) {
			t.Errorf("%s: error is %v", name, err)
		}
		if d := time.Since(begin); d > 150*time.Millisecond { // less than a RetryDelay: it cannot get better
			t.Errorf("%s took %v", name, d)
		}
	}
	if l.FencingToken() != 0 && value != strconv.FormatInt(math.MaxInt64, 10) {
		t.Errorf("token %d", l.FencingToken())
	}
	if c.Exists(t.Context(), l.Key()).Val() != 0 {
		t.Error("the lease is there")
	}
	if v := c.Get(t.Context(), counter).Val(); v != value {
		t.Errorf("the counter is %q now", v)
	}
}

func TestFenceFloorIsExceeded(t *testing.T) {
	onBoth(t, func(t *testing.T, c *redis.Client) {
		m := manager(t, []redlock.Node{c}, redlock.Config{})
		counter, floor := redistest.Key(t), uint64(0)
		l := m.NewLock(redistest.Key(t), redlock.WithFencingToken(counter),
			redlock.WithFenceFloor(func(context.Context) (uint64, error) { return floor, nil }))
		for _, step := range []struct{ floor, want uint64 }{{0, 1}, {0, 2}, {100, 101}, {50, 102}, {1<<53 + 1, 1<<53 + 2}, {1<<60 + 7, 1<<60 + 8}} {
			floor = step.floor
			must(t, l.TryLock(t.Context()))
			if l.FencingToken() != step.want {
				t.Errorf("with floor %d the token is %d, want %d", floor, l.FencingToken(), step.want)
			}
			must(t, l.Unlock(t.Context()))
		}
		// A counter that was lost issues no old token again.
		must(t, c.Del(t.Context(), counter).Err())
		must(t, l.TryLock(t.Context()))
		if l.FencingToken() != 1<<60+8 {
			t.Errorf("token %d", l.FencingToken())
		}
		must(t, l.Unlock(t.Context()))
		for _, floor = range []uint64{math.MaxInt64, math.MaxUint64} {
			if err := l.TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), "BADCOUNTER") {
				t.Errorf("floor %d: error is %v", floor, err)
			}
		}
	})
}

func TestFailingFenceFloorFailsTheAcquisition(t *testing.T) {
	virtual(t, 1, func(t *testing.T, w world) {
		broken := errors.New("no database")
		l := w.party(t, redlock.Config{}).NewLock("k", redlock.WithFencingToken("f"),
			redlock.WithFenceFloor(func(context.Context) (uint64, error) { return 0, broken }))
		wantIs(t, l.TryLock(t.Context()), broken)
		wantIs(t, l.Lock(t.Context()), broken)
		w.wantFree(t, "k")
	})
}

func TestFencingOnRedlockIsUnsupported(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		m := w.party(t, redlock.Config{})
		l := m.NewLock("k", redlock.WithFencingToken("f"))
		wantIs(t, l.TryLock(t.Context()), redlock.ErrFencingUnsupported)
		wantIs(t, l.Lock(t.Context()), redlock.ErrFencingUnsupported)
	})
}

func TestTokenNeverRepeatsAfterALostReply(t *testing.T) {
	s := newSite(t, 1)
	m := s.manager(t, redlock.Config{RetryDelay: 5 * time.Millisecond}, func(o *redis.Options) { o.MaxRetries = 3 })
	key, counter := redistest.Key(t), redistest.Key(t)
	l := m.NewLock(key, redlock.WithFencingToken(counter))
	last := uint64(0)
	for i := range 20 {
		// Given that the reply to the acquisition, and now and then that to the release, is lost,
		if i%2 == 0 {
			s.proxies[0].CutOnReply(counter)
		}
		if i%3 == 0 {
			s.proxies[0].CutOnReply(key + ":released")
		}
		// when the lease is acquired, at the second attempt or the first,
		must(t, l.TryLock(t.Context()))
		// then the token is greater than any before.
		if l.FencingToken() <= last {
			t.Fatalf("token %d after %d", l.FencingToken(), last)
		}
		last = l.FencingToken()
		_ = l.Unlock(t.Context())
	}
	s.wantFree(t, key, time.Second)
}

// One attempt, whose reply is lost: nobody else holds the lease, and nothing stays.
func TestLostReplyOfTheScriptIsNotContention(t *testing.T) {
	s := newSite(t, 1)
	m := s.manager(t, redlock.Config{}, func(o *redis.Options) { o.MaxRetries = 3 })
	key, counter := redistest.Key(t), redistest.Key(t)
	must(t, m.Do(t.Context(), key, func(context.Context) error { return nil }, redlock.WithFencingToken(counter))) // the script is known
	s.proxies[0].CutOnReply(counter)
	l := m.NewLock(key, redlock.WithFencingToken(counter), redlock.WithAttempts(1))
	err := l.TryLock(t.Context())
	wantIs(t, err, redlock.ErrNotAcquired)
	if strings.Contains(err.Error(), "held by") {
		t.Errorf("error is %q", err)
	}
	s.wantFree(t, key, time.Second)
	must(t, l.TryLock(t.Context()))
	if l.FencingToken() < 3 {
		t.Errorf("token %d was issued before", l.FencingToken())
	}
}
