package redlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// clients returns n clients that are never used.
func clients(t *testing.T, n int) []Node {
	t.Helper()
	nodes := make([]Node, n)
	for i := range nodes {
		c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		t.Cleanup(func() { c.Close() })
		nodes[i] = c
	}
	return nodes
}

func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

type fakeless struct{ Node } // a node of another type, holding a nil

func TestBadNodesAreNamed(t *testing.T) {
	three := clients(t, 3)
	var typedNil *redis.Client
	for _, c := range []struct {
		name  string
		nodes []Node
		words []string
	}{
		{"none", nil, []string{"nodes", "empty"}},
		{"even", append(clients(t, 1), three...), []string{"nodes", "4 nodes", "odd"}},
		{"two", three[:2], []string{"nodes", "2 nodes", "three"}},
		{"nil", []Node{three[0], nil, three[2]}, []string{"nodes[1]", "nil"}},
		{"typed nil", []Node{three[0], three[1], typedNil}, []string{"nodes[2]", "nil"}},
		{"same twice", []Node{three[0], three[1], three[0]}, []string{"nodes[2]", "nodes[0]"}},
		{"same value twice", []Node{fakeless{three[0]}, three[1], fakeless{three[0]}}, []string{"nodes[2]", "nodes[0]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewRedlock(c.nodes)
			wantError(t, err, c.words...)
			_, err = New(c.nodes...)
			wantError(t, err, c.words...)
		})
	}
	_, err := NewSingle(nil)
	wantError(t, err, "nodes[0]", "nil")
	_, err = NewSingle(typedNil)
	wantError(t, err, "nodes[0]", "nil")
	_, err = NewRedlock(three[:1])
	wantError(t, err, "nodes", "1 node", "NewSingle")
	_, err = NewSingle(three[0], Config{}, Config{})
	wantError(t, err, "cfg", "2 values")
}

func TestBadConfigIsNamed(t *testing.T) {
	for _, c := range []struct {
		cfg   Config
		words []string
	}{
		{Config{Expiry: -time.Second}, []string{"Config.Expiry", "-1s"}},
		{Config{Expiry: 999 * time.Microsecond}, []string{"Config.Expiry", "999µs", "1ms"}},
		{Config{Expiry: math.MaxInt64}, []string{"Config.Expiry", "2562047h47m16.854775807s"}},
		{Config{Expiry: 2 * time.Millisecond}, []string{"Config.Expiry", "2ms", "drift"}},
		{Config{Expiry: time.Second, DriftFactor: 0.999}, []string{"Config.Expiry", "1s", "drift"}},
		{Config{DriftFactor: -0.1}, []string{"Config.DriftFactor", "-0.1"}},
		{Config{DriftFactor: 1}, []string{"Config.DriftFactor", "1"}},
		{Config{DriftFactor: math.NaN()}, []string{"Config.DriftFactor", "NaN"}},
		{Config{DriftFactor: math.Inf(1)}, []string{"Config.DriftFactor", "+Inf"}},
		{Config{Attempts: -1}, []string{"Config.Attempts", "-1"}},
		{Config{RetryDelay: -time.Second}, []string{"Config.RetryDelay", "-1s"}},
		{Config{OperationTimeout: -time.Second}, []string{"Config.OperationTimeout", "-1s"}},
	} {
		_, err := NewWithConfig(c.cfg, clients(t, 1)...)
		wantError(t, err, c.words...)
	}
}

func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		cfg     Config
		expiry  time.Duration
		timeout time.Duration
	}{
		{Config{}, 30 * time.Second, 500 * time.Millisecond},
		{Config{Expiry: time.Second}, time.Second, 200 * time.Millisecond},
		{Config{Expiry: time.Hour}, time.Hour, 500 * time.Millisecond},
		{Config{OperationTimeout: 3 * time.Second}, 30 * time.Second, 3 * time.Second},
	} {
		m, err := NewWithConfig(c.cfg, clients(t, 3)...)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if m.cfg.Expiry != c.expiry || m.cfg.OperationTimeout != c.timeout || m.cfg.Attempts != 3 ||
			m.cfg.RetryDelay != 200*time.Millisecond || m.cfg.DriftFactor != 0.01 {
			t.Errorf("%+v becomes %+v", c.cfg, m.cfg)
		}
		if m.Mode() != ModeRedlock || m.Quorum() != 2 {
			t.Errorf("mode %v, quorum %d; want Redlock, 2", m.Mode(), m.Quorum())
		}
	}
}

func TestRetryDelayHasUpToHalfOfItAsJitter(t *testing.T) {
	low, high := time.Hour, time.Duration(0)
	for range 10_000 {
		d := jittered(200 * time.Millisecond)
		low, high = min(low, d), max(high, d)
	}
	if low < 200*time.Millisecond || low > 210*time.Millisecond || high > 300*time.Millisecond || high < 290*time.Millisecond {
		t.Fatalf("10000 delays lie between %v and %v, want 200ms and 300ms", low, high)
	}
}

func TestBadOptionsAreNamedByEveryAcquisition(t *testing.T) {
	single, err := New(clients(t, 1)...)
	if err != nil {
		t.Fatal(err)
	}
	defer single.Close()
	redlock, err := New(clients(t, 3)...)
	if err != nil {
		t.Fatal(err)
	}
	defer redlock.Close()
	floor := func(context.Context) (uint64, error) { return 1, nil }

	for _, c := range []struct {
		name  string
		m     *Manager
		key   string
		opts  []LockOption
		words []string
	}{
		{"empty key", single, "", nil, []string{"key", `""`}},
		{"expiry too short", single, "k", []LockOption{WithExpiry(time.Microsecond)}, []string{"WithExpiry", "1µs"}},
		{"expiry zero", single, "k", []LockOption{WithExpiry(0)}, []string{"WithExpiry", "0s"}},
		{"expiry too long", single, "k", []LockOption{WithExpiry(math.MaxInt64)}, []string{"WithExpiry"}},
		{"all drift", single, "k", []LockOption{WithExpiry(2 * time.Millisecond)}, []string{"WithExpiry", "2ms", "drift"}},
		{"no attempts", single, "k", []LockOption{WithAttempts(0)}, []string{"WithAttempts", "0"}},
		{"interval zero", single, "k", []LockOption{WithAutoRenew(0)}, []string{"WithAutoRenew", "0s"}},
		{"interval negative", single, "k", []LockOption{WithAutoRenew(-time.Second)}, []string{"WithAutoRenew", "-1s"}},
		{"interval at expiry", single, "k", []LockOption{WithAutoRenew(30 * time.Second)}, []string{"WithAutoRenew", "30s"}},
		{"interval at validity", single, "k", []LockOption{WithAutoRenew(29698 * time.Millisecond)}, []string{"WithAutoRenew", "29.698s"}},
		{"deadline zero", single, "k", []LockOption{WithRenewDeadline(0)}, []string{"WithRenewDeadline", "0s"}},
		{"deadline too late", single, "k", []LockOption{WithRenewDeadline(29700 * time.Millisecond)}, []string{"WithRenewDeadline", "29.7s", "29.698s"}},
		{"deadline before renewal", single, "k", []LockOption{WithAutoRenew(3 * time.Second), WithRenewDeadline(2 * time.Second)}, []string{"WithRenewDeadline", "2s", "3s"}},
		{"metadata", single, "k", []LockOption{WithMetadata(strings.Repeat("x", MaxMetadata+1))}, []string{"WithMetadata", "65537 bytes"}},
		{"no counter", single, "k", []LockOption{WithFencingToken("")}, []string{"WithFencingToken", `""`}},
		{"counter is the lease", single, "k", []LockOption{WithFencingToken("k")}, []string{"WithFencingToken", `"k"`}},
		{"floor alone", single, "k", []LockOption{WithFenceFloor(floor)}, []string{"WithFenceFloor"}},
		{"nil option", single, "k", []LockOption{nil}, []string{"opts[0]", "nil"}},
		{"fencing on Redlock", redlock, "k", []LockOption{WithFencingToken("f")}, []string{"single"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := c.m.NewLock(c.key, c.opts...)
			for name, err := range map[string]error{
				"TryLock": l.TryLock(t.Context()),
				"Lock":    l.Lock(t.Context()),
				"Extend":  l.Extend(t.Context(), time.Second),
				"Unlock":  l.Unlock(t.Context()),
				"Do":      c.m.Do(t.Context(), c.key, func(context.Context) error { panic("must not run") }, c.opts...),
			} {
				t.Run(name, func(t *testing.T) { wantError(t, err, c.words...) })
			}
			if c.m == redlock && !errors.Is(l.TryLock(t.Context()), ErrFencingUnsupported) {
				t.Error("want ErrFencingUnsupported")
			}
		})
	}
	wantError(t, single.Do(t.Context(), "k", nil), "fn", "nil")
	_, _, err = single.Holder(t.Context(), "")
	wantError(t, err, "key", `""`)
}

func TestExactLimitsAreAccepted(t *testing.T) {
	m, err := NewWithConfig(Config{Expiry: MaxExpiry, DriftFactor: 0.5}, clients(t, 1)...)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, opts := range [][]LockOption{
		{WithExpiry(5 * time.Millisecond)},
		{WithExpiry(30 * time.Second), WithAutoRenew(15*time.Second - 3*time.Millisecond)},
		{WithExpiry(30 * time.Second), WithRenewDeadline(15*time.Second - 2*time.Millisecond)},
		{WithMetadata(strings.Repeat("x", MaxMetadata))},
	} {
		if l := m.NewLock("k", opts...); l.invalid != nil {
			t.Error(l.invalid)
		}
	}
}
