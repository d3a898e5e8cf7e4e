// Command cron shows singleton cron jobs under Redis leases: gocron schedulers of which one is elected, or which take a
// lease for every run, and a plain ticker. What the jobs write is fenced by a condition in a database, which refuses a
// writer that has been paused while another took over.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

const usage = `Singleton cron jobs under Redis leases.

  go run ./examples/cron
      Shows on an embedded Redis and a temporary SQLite database how jobs run on one scheduler at a time, how another
      takes over, and how the database refuses a stale writer. Exits with 0 if all of that happened, within a minute.

  go run ./examples/cron --redis localhost:6379
      The same on a Redis of yours, under keys of its own, which are removed. REDIS_USERNAME and REDIS_PASSWORD are the
      credentials, if any are needed.

Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "cron:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	f := flag.NewFlagSet("cron", flag.ContinueOnError)
	addr := f.String("redis", "", "`address` of Redis (default: an embedded one)")
	f.Usage = func() { fmt.Fprint(f.Output(), usage); f.PrintDefaults() }
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: there are flags only", f.Arg(0))
	}
	if strings.Contains(*addr, ",") {
		return fmt.Errorf("--redis is %q: give one address", *addr)
	}

	options := &redis.Options{Addr: *addr, Username: os.Getenv("REDIS_USERNAME"), Password: os.Getenv("REDIS_PASSWORD")}
	if *addr == "" {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true) // TTLs run by the clock, as in a real Redis
		if err := server.Start(); err != nil {
			return fmt.Errorf("starting the embedded Redis: %w", err)
		}
		defer server.Close()
		options = &redis.Options{Addr: server.Addr()}
	}
	dir, err := os.MkdirTemp("", "cron")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	books, err := openBooks(filepath.Join(dir, "books.db"))
	if err != nil {
		return err
	}
	defer books.db.Close()

	admin := redis.NewClient(options)
	defer admin.Close()
	if err := admin.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis answers at %s: %w", options.Addr, err)
	}
	d := &demo{redis: options, admin: admin, books: books, namespace: "example-cron-" + uuid.NewString()[:8], start: time.Now()}
	defer func() { err = errors.Join(err, d.clear()) }()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return d.run(ctx)
}
