// Package bubble provides Redis in virtual time: a miniredis inside a testing/synctest bubble, whose TTLs run
// by the bubble's clock and whose connections are pipes in memory.
package bubble

import (
	"context"
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Redis starts a server in the bubble that it is called in, and returns it with a maker of clients. All of
// them are closed when the test ends.
//
// A server that was closed is back, with its data, at the next connection: to keep one away use a dialer of your
// own, see Options.
func Redis(t testing.TB) (server *miniredis.Miniredis, client func() *redis.Client) {
	t.Helper()
	server = miniredis.NewMiniRedis()
	server.ClockTTL(true)
	first, err := server.Dial() // starts it, so that Server is there for whoever sets a hook before a client is heard
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	t.Cleanup(server.Close)
	return server, func() *redis.Client {
		c := redis.NewClient(Options(func(context.Context) (net.Conn, error) { return server.Dial() }))
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// Options are those of a client whose connections dial makes, and that does nothing on its own.
func Options(dial func(ctx context.Context) (net.Conn, error)) *redis.Options {
	return &redis.Options{
		Dialer:                   func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity:          true,
		PoolSize:                 1000, // nobody waits for a turn: the timers for that are shared between bubbles
	}
}
