package redlock

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Node is the part of a go-redis client that every Redis node must have. *redis.Client,
// *redis.ClusterClient, *redis.Ring, redis.UniversalClient and the auto-pipelining client
// are Nodes.
//
// What a node can do beyond it is found by interface assertion and used when it is there:
// Process, to run scripts by their digest and to send a command without the client's silent
// repetition, and Subscribe, to be woken by a release.
//
// Clients are used as they are, with their hooks, limits and timeouts, and are never closed here. No operation waits
// longer than the OperationTimeout, but a command that a client goes on waiting for keeps a goroutine and one of
// a few places that its node has for commands: give clients a ReadTimeout, or ContextTimeoutEnabled.
type Node interface {
	SetNX(ctx context.Context, key string, value any, expiration time.Duration) *redis.BoolCmd
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
}

type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// subscriber returns how to be told of releases. A Ring may have the channel on another shard than the lease.
func (p *peer) subscriber() (subscriber, bool) {
	if _, ok := p.node.(*redis.Ring); ok {
		return nil, false
	}
	s, ok := p.node.(subscriber)
	return s, ok
}

// laneWidth is how many commands may be under way to one node. It bounds the goroutines
// that a silent node can hold, whatever timeouts its client has.
const laneWidth = 16

// peer is a node as the manager sees it.
type peer struct {
	node     Node
	index    int
	bound    time.Duration // of one command
	lane     chan struct{} // holds a token for every command under way
	settler  settler
	listener *listener
}

func newPeer(index int, node Node, bound time.Duration) *peer {
	p := &peer{node: node, index: index, bound: bound, lane: make(chan struct{}, laneWidth)}
	p.settler.peer = p
	p.listener = newListener(p)
	return p
}

// errNotSent says that a command was given up before it was sent.
var errNotSent = errors.New("too many commands are waiting for this node")

// enter takes a place in the lane, and returns how to leave it.
func (p *peer) enter(ctx context.Context) (leave func(), err error) {
	select {
	case p.lane <- struct{}{}:
		return func() { <-p.lane }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errNotSent, ctx.Err())
	}
}

// sendsOnce reports whether the client can be kept from repeating a command by itself.
func (p *peer) sendsOnce() bool {
	_, ok := p.node.(processor)
	return ok
}

// setNX is the plain acquisition: SET key value NX PX ttl, sent at most once.
func (p *peer) setNX(ctx context.Context, key, value string, ttl time.Duration) (ok bool, err error) {
	leave, err := p.enter(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	node, isProcessor := p.node.(processor)
	if !isProcessor {
		ok, err = p.node.SetNX(ctx, key, value, ttl).Result()
		return ok, withoutToken(err, value)
	}
	cmd := onceBool{redis.NewBoolCmd(ctx, "SET", key, value, "NX", "PX", milliseconds(ttl))}
	_ = node.Process(ctx, cmd) // the command carries the error
	ok, err = cmd.Result()
	return ok, withoutToken(err, value)
}

// run executes a script by its digest, and sends its text where that is not known. If there are arguments, the
// first is a token. It is sent at most once when once says so; otherwise the client may repeat it.
func (p *peer) run(ctx context.Context, s *script, once bool, keys []string, args ...any) (v any, err error) {
	leave, err := p.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if node, ok := p.node.(processor); ok {
		v, err = process(ctx, node, once, "EVALSHA", s.digest, keys, args)
		if hasCode(err, "NOSCRIPT") {
			v, err = process(ctx, node, once, "EVAL", s.text, keys, args)
		}
	} else {
		v, err = p.node.Eval(ctx, s.text, keys, args...).Result()
	}
	if len(args) > 0 {
		err = withoutToken(err, fmt.Sprint(args[0]))
	}
	return v, err
}

func process(ctx context.Context, node processor, once bool, command, script string, keys []string, args []any) (any, error) {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, command, script, len(keys))
	for _, k := range keys {
		words = append(words, k)
	}
	cmd := redis.NewCmd(ctx, append(words, args...)...)
	cmd.SetFirstKeyPos(3)
	if once {
		_ = node.Process(ctx, onceCmd{cmd})
	} else {
		_ = node.Process(ctx, cmd)
	}
	return cmd.Result()
}

// onceBool and onceCmd are commands that the client must not send again after an error:
// the first copy may arrive late, long after the second one was answered and undone.
type (
	onceBool struct{ *redis.BoolCmd }
	onceCmd  struct{ *redis.Cmd }
)

func (onceBool) NoRetry() bool { return true }
func (onceCmd) NoRetry() bool  { return true }

// script is a Lua script and its SHA-1 digest, by which servers know it.
type script struct{ text, digest string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text: text, digest: hex.EncodeToString(sum[:])}
}

//go:embed scripts/counter.lua
var counterText string

//go:embed scripts/acquire.lua
var acquireText string

//go:embed scripts/propose.lua
var proposeText string

//go:embed scripts/agree.lua
var agreeText string

//go:embed scripts/renew.lua
var renewText string

//go:embed scripts/release.lua
var releaseText string

//go:embed scripts/read.lua
var readText string

var (
	acquireScript = newScript(counterText + acquireText)
	proposeScript = newScript(counterText + proposeText)
	agreeScript   = newScript(counterText + agreeText)
	renewScript   = newScript(renewText)
	releaseScript = newScript(releaseText)
	readScript    = newScript(readText)
)

// milliseconds returns d in whole milliseconds, rounded up: a key must never
// expire before the lease that it stands for.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// checkNodes refuses nodes that cannot be meant.
func checkNodes(nodes []Node) error {
	if len(nodes) == 0 {
		return invalid("nodes", "empty", "give one node (single) or an odd number of at least three (Redlock)")
	}
	seen := make(map[Node]int, len(nodes))
	for i, n := range nodes {
		field := fmt.Sprintf("nodes[%d]", i)
		if isNil(n) {
			return invalid(field, "nil", "give a connected go-redis client")
		}
		if !reflect.ValueOf(n).Comparable() {
			continue
		}
		if first, dup := seen[n]; dup {
			return invalid(field, fmt.Sprintf("the same client as nodes[%d]", first),
				"every node must be an independent Redis primary")
		}
		seen[n] = i
	}
	return nil
}

func isNil(n Node) bool {
	if n == nil {
		return true
	}
	switch v := reflect.ValueOf(n); v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Interface, reflect.Slice, reflect.Chan:
		return v.IsNil()
	default:
		return false
	}
}

// releaseChannel is where a release of the lease at key is told. The lease
// {ns/name}:lease of an election is released on {ns/name}:released.
func releaseChannel(key string) string {
	return strings.TrimSuffix(key, ":lease") + ":released"
}
