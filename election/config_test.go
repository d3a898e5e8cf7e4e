package election

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/redlock"
)

func validConfig(t *testing.T) Config {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never connected
	t.Cleanup(func() { _ = rdb.Close() })
	m, err := redlock.NewSingle(rdb)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Manager: m,
		Name:    "name",
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: func() {},
		},
	}
}

func TestBadConfigIsReportedByFieldAndValue(t *testing.T) {
	three := func() *redlock.Manager {
		var nodes []redlock.Node
		for range 3 {
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			t.Cleanup(func() { _ = rdb.Close() })
			nodes = append(nodes, rdb)
		}
		m, err := redlock.NewRedlock(nodes)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}()
	for _, c := range []struct {
		field, value string
		change       func(*Config)
	}{
		{"Manager", "nil", func(c *Config) { c.Manager = nil }},
		{"Name", `""`, func(c *Config) { c.Name = "" }},
		{"Name", `"a}b"`, func(c *Config) { c.Name = "a}b" }},
		{"Namespace", `"a/b"`, func(c *Config) { c.Namespace = "a/b" }},
		{"Callbacks.OnStartedLeading", "nil", func(c *Config) { c.Callbacks.OnStartedLeading = nil }},
		{"Callbacks.OnStoppedLeading", "nil", func(c *Config) { c.Callbacks.OnStoppedLeading = nil }},
		{"LeaseDuration", "-1s", func(c *Config) { c.LeaseDuration = -time.Second }},
		{"LeaseDuration", "10s", func(c *Config) { c.LeaseDuration = 10 * time.Second }}, // RenewDeadline is 10s
		{"LeaseDuration", "1000000h", func(c *Config) { c.LeaseDuration = 1000000 * time.Hour }},
		{"RenewDeadline", "-1s", func(c *Config) { c.RenewDeadline = -time.Second }},
		{"RenewDeadline", "2.4s", func(c *Config) { c.RenewDeadline = 2400 * time.Millisecond }}, // RetryPeriod is 2s
		{"RetryPeriod", "-1s", func(c *Config) { c.RetryPeriod = -time.Second }},
		{"LeaseDuration", "6ms", func(c *Config) {
			c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = 6*time.Millisecond, 5900*time.Microsecond, 4*time.Millisecond
		}},
		{"Identity", "70000 bytes", func(c *Config) { c.Identity = strings.Repeat("x", 70000) }},
		{"FenceFloor", "set", func(c *Config) {
			c.Manager = three
			c.FenceFloor = func(context.Context) (uint64, error) { return 0, nil }
		}},
	} {
		cfg := validConfig(t)
		c.change(&cfg)
		_, err := New(cfg)
		if err == nil || !strings.HasPrefix(err.Error(), "election: Config."+c.field+" is "+c.value) {
			t.Errorf("%s %s: New says %v", c.field, c.value, err)
		}
	}
}

func TestDefaults(t *testing.T) {
	e, err := New(validConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	c := e.cfg
	if c.LeaseDuration != 15*time.Second || c.RenewDeadline != 10*time.Second || c.RetryPeriod != 2*time.Second {
		t.Errorf("the durations are %v, %v, %v", c.LeaseDuration, c.RenewDeadline, c.RetryPeriod)
	}
	if other, _ := New(validConfig(t)); !strings.Contains(c.Identity, "_") || other.cfg.Identity == c.Identity {
		t.Errorf("the identity is %q, and another's %q", c.Identity, other.cfg.Identity)
	}
	if e.keys.Lease != "{/name}:lease" || e.Name() != "leaderElection-name" {
		t.Errorf("the key is %q, the name of the health check %q", e.keys.Lease, e.Name())
	}
	if e.NeedLeaderElection() || e.IsLeader() || e.Epoch() != 0 || e.Check(nil) != nil {
		t.Error("a candidate that does not run is not at rest")
	}
}
