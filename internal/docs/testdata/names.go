// Package block is what each block of Go on the pages is compiled in. Statements may use these names without declaring them;
// what they declare themselves hides them.
package block

import (
	"context"
	"database/sql"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

var (
	ctx context.Context
	db  *sql.DB

	rdb                 *redis.Client
	nodeA, nodeB, nodeC *redis.Client
	password            string

	manager *redlock.Manager
	lock    *resourcelock.Lock
)

// The caller's own work.

func updateOrder(ctx context.Context, id int, fence uint64) error { return nil }
func run(ctx context.Context, epoch uint64)                       {}
func report(ctx context.Context) error                            { return nil }
