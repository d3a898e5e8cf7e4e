package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/redlock"
)

// servers are the Redis servers that the lease lives on, and the manager of leases over them.
type servers struct {
	clients []*redis.Client
	leases  *redlock.Manager
}

// connect makes clients and a manager. It does no I/O.
func connect(o options) (*servers, error) {
	s := new(servers)
	var nodes []redlock.Node
	for _, addr := range o.addrs() {
		c := redis.NewClient(o.client(addr))
		s.clients, nodes = append(s.clients, c), append(nodes, c)
	}
	var err error
	if s.leases, err = redlock.New(nodes...); err != nil {
		s.close()
		return nil, fmt.Errorf("--redis is %q: %w", o.redis, err)
	}
	return s, nil
}

func (o options) client(addr string) *redis.Options {
	c := &redis.Options{
		Addr:                  addr,
		Username:              os.Getenv("REDIS_USERNAME"),
		Password:              os.Getenv("REDIS_PASSWORD"),
		DialTimeout:           time.Second,
		ReadTimeout:           time.Second,
		ContextTimeoutEnabled: true,
	}
	if o.redisTLS {
		c.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return c
}

// ping returns an error that names each server which does not answer.
func (s *servers) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var errs []error
	for _, c := range s.clients {
		if err := c.Ping(ctx).Err(); err != nil {
			errs = append(errs, fmt.Errorf("no Redis answers at %s: %w", c.Options().Addr, err))
		}
	}
	return errors.Join(errs...)
}

// remove deletes keys on every server.
func (s *servers) remove(ctx context.Context, keys ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var errs []error
	for _, c := range s.clients {
		errs = append(errs, c.Del(ctx, keys...).Err())
	}
	return errors.Join(errs...)
}

func (s *servers) close() {
	if s.leases != nil {
		_ = s.leases.Close()
	}
	for _, c := range s.clients {
		_ = c.Close()
	}
}

// store returns the fenced store, nil with Redlock: it is on the Redis that elects, and must be one.
func (s *servers) store(o options) *store {
	if s.leases.Mode() == redlock.ModeRedlock {
		return nil
	}
	return &store{s.clients[0], o.key("store")}
}

// key returns a key of this election. The braces keep all of them in one slot of a Redis Cluster; lease and epoch
// are where package resourcelock has them.
func (o options) key(what string) string { return "{" + o.namespace + "/" + o.name + "}:" + what }

// startEmbedded starts a Redis in this process, on a free port of the loopback interface.
func startEmbedded() (*miniredis.Miniredis, error) {
	for _, name := range []string{"REDIS_USERNAME", "REDIS_PASSWORD"} { // of another Redis
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true) // TTLs run by the clock, as in a real Redis
	if err := server.Start(); err != nil {
		return nil, fmt.Errorf("starting the embedded Redis: %w", err)
	}
	return server, nil
}
