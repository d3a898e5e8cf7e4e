package main

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
)

func TestStoreRefusesOldEpochs(t *testing.T) {
	embedded, err := startEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(embedded.Close)
	for name, addr := range map[string]string{"embedded": embedded.Addr(), "server": redistest.Single(t)} {
		t.Run(name, func(t *testing.T) {
			c := redis.NewClient(&redis.Options{Addr: addr})
			s := &store{c, redistest.Key(t)}
			t.Cleanup(func() { c.Del(context.Background(), s.key); _ = c.Close() })
			for _, w := range []struct {
				epoch uint64
				ok    bool
				after uint64
			}{
				{1, true, 1}, {1, true, 1}, {3, true, 3}, {1, false, 3}, {2, false, 3}, {3, true, 3},
				{10, true, 10}, {9, false, 10},
				{1<<53 + 2, true, 1<<53 + 2}, {1<<53 + 1, false, 1<<53 + 2}, // as doubles these are one number
				{math.MaxInt64, true, math.MaxInt64}, {1, false, math.MaxInt64},
			} {
				err := s.write(t.Context(), w.epoch, "v")
				if w.ok && err != nil || !w.ok && !errors.Is(err, errStale) {
					t.Errorf("writing under epoch %d: %v", w.epoch, err)
				}
				if floor, err := s.floor(t.Context()); floor != w.after || err != nil {
					t.Errorf("after a write under %d the store has seen %d (%v), want %d", w.epoch, floor, err, w.after)
				}
			}
		})
	}
}
