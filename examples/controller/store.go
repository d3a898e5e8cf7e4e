package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// store is a resource that the leader writes to, and that protects itself: it remembers the highest epoch that it
// has accepted, and refuses any lower one in the same atomic step. A database does the same with
// UPDATE ... WHERE last_epoch <= $epoch.
type store struct {
	client *redis.Client
	key    string
}

var errStale = errors.New("refused: the store has seen a higher epoch")

// Epochs are compared as strings, the shorter being the smaller: Lua's numbers are exact to 2^53 only.
var writeScript = redis.NewScript(`
local last = redis.call('HGET', KEYS[1], 'epoch') or '0'
if #ARGV[1] < #last or (#ARGV[1] == #last and ARGV[1] < last) then return last end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'value', ARGV[2])
return ''`)

// write stores value under epoch. It returns an error that is errStale if the store has accepted a higher one.
func (s *store) write(ctx context.Context, epoch uint64, value string) error {
	last, err := writeScript.Run(ctx, s.client, []string{s.key}, strconv.FormatUint(epoch, 10), value).Text()
	if err != nil {
		return err
	}
	if last != "" {
		return fmt.Errorf("epoch %d: %w: %s", epoch, errStale, last)
	}
	return nil
}

// read returns the highest epoch that has written, 0 if none has, and what it wrote last.
func (s *store) read(ctx context.Context) (epoch uint64, value string, err error) {
	fields, err := s.client.HGetAll(ctx, s.key).Result()
	if err != nil || fields["epoch"] == "" {
		return 0, "", err
	}
	epoch, err = strconv.ParseUint(fields["epoch"], 10, 64)
	return epoch, fields["value"], err
}

// floor is what the next epoch must exceed: should Redis lose its counter but not the store, the next leader
// still gets an epoch that the store accepts.
func (s *store) floor(ctx context.Context) (uint64, error) {
	epoch, _, err := s.read(ctx)
	return epoch, err
}
