package redlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// ear hears what is logged and returned, and knows the tokens that were sent.
type ear struct {
	mu     sync.Mutex
	heard  []string
	tokens map[string]bool
}

func (e *ear) hear(what ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, fmt.Sprint(what...))
}

func (e *ear) sent(cmd redis.Cmder) {
	args, token := cmd.Args(), ""
	switch name := strings.ToLower(fmt.Sprint(args[0])); {
	case name == "set":
		token = fmt.Sprint(args[2])
	case strings.HasPrefix(name, "eval"):
		if first := 3 + args[2].(int); first < len(args) {
			token = fmt.Sprint(args[first])
		}
	}
	if len(token) >= 40 {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.tokens[token[:40]] = true
	}
}

func (e *ear) DialHook(next redis.DialHook) redis.DialHook { return next }

func (e *ear) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (e *ear) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		e.sent(cmd)
		return next(ctx, cmd)
	}
}

// A token is a capability: it is in no error and no log, neither whole nor in a part that says something.
func TestTokensAreInNoErrorAndNoLog(t *testing.T) {
	for name, args := range map[string][]string{
		"healthy servers":       nil,
		"servers without SET":   {"--rename-command", "SET", ""},
		"servers without Lua":   {"--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""},
		"servers out of memory": {"--maxmemory", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{servers: redistest.StartN(t, 3, redistest.WithArgs(args...))}
			for _, srv := range s.servers {
				s.proxies = append(s.proxies, redistest.NewProxy(t, srv.Addr()))
			}
			e := &ear{tokens: make(map[string]bool)}
			cfg := redlock.Config{
				Expiry: time.Second, OperationTimeout: 50 * time.Millisecond, RetryDelay: 5 * time.Millisecond,
				Logger: funcr.New(func(prefix, args string) { e.hear(prefix, args) }, funcr.Options{Verbosity: 127}),
			}
			nodes := s.clients(t)
			for _, n := range nodes {
				n.(*redis.Client).AddHook(e)
			}
			misfortunes(t, s, e, manager(t, nodes, cfg))
			misfortunes(t, s, e, manager(t, nodes[:1], cfg), redlock.WithFencingToken("f"))
			e.mu.Lock() // something may still be settled
			defer e.mu.Unlock()
			if len(e.tokens) == 0 || len(e.heard) < 10 {
				t.Fatalf("%d tokens, %d texts: this test proves nothing", len(e.tokens), len(e.heard))
			}
			for token := range e.tokens {
				for _, text := range e.heard {
					if i := strings.Index(text, token[:10]); i >= 0 {
						t.Errorf("a token is in %q", text)
					}
				}
			}
		})
	}
}

// misfortunes leads a lease through what can go wrong, and has e hear all that is said.
func misfortunes(t *testing.T, s *site, e *ear, m *redlock.Manager, opts ...redlock.LockOption) {
	ctx := t.Context()
	a, b := m.NewLock("k", opts...), m.NewLock("k", append(opts, redlock.WithAutoRenew(20*time.Millisecond), redlock.WithMetadata("m"))...)
	e.hear(a.TryLock(ctx), b.TryLock(ctx), a.Extend(ctx, time.Second), a.Unlock(ctx), b.TryLock(ctx))
	time.Sleep(50 * time.Millisecond)
	each := func(f func(*redistest.Proxy)) {
		for _, p := range s.proxies {
			f(p)
		}
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	each(func(p *redistest.Proxy) { p.Hold(redistest.ToClient) })
	e.hear(a.TryLock(short), b.Extend(ctx, time.Second), b.Unlock(ctx), a.Lock(short))
	each(func(p *redistest.Proxy) { p.Release(redistest.Both) })
	e.hear(b.TryLock(ctx))
	for _, srv := range s.servers {
		srv.Client().FlushAll(ctx)
	}
	time.Sleep(50 * time.Millisecond) // the renewal finds nothing
	e.hear(b.Unlock(ctx), a.TryLock(ctx))
	each((*redistest.Proxy).Refuse)
	e.hear(a.Unlock(ctx), a.TryLock(ctx))
	each((*redistest.Proxy).Accept)
	h, held, err := m.Holder(ctx, "k")
	e.hear(h, held, err)
	for _, srv := range s.servers {
		srv.Client().FlushAll(ctx)
		srv.Client().RPush(ctx, "k", "a list")
	}
	e.hear(a.TryLock(ctx), b.TryLock(ctx))
	for _, srv := range s.servers {
		srv.Client().FlushAll(ctx)
	}
	for _, l := range []*redlock.Lock{a, b} {
		e.hear(fmt.Sprintf("%v %s", l.Key(), l.Unlock(ctx)))
	}
}
