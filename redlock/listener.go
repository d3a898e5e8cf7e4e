package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pingInterval is how often an idle subscription is probed. A dead one costs no more than the time to
// the end of a TTL: waiters look then in any case.
const pingInterval = time.Minute

// listener is the one subscription connection to a node, shared by all watches. Its goroutine lives for as
// long as there are any: it brings the channels that are subscribed to in line with those that are watched.
type listener struct {
	peer *peer
	kick chan struct{} // holds a token when the watches have changed

	mu      sync.Mutex
	watches map[string]map[*Watch]struct{} // by channel
	joined  map[string]bool                // channels that the server has confirmed
	working bool
}

func newListener(p *peer) *listener {
	return &listener{
		peer:    p,
		kick:    make(chan struct{}, 1),
		watches: make(map[string]map[*Watch]struct{}),
		joined:  make(map[string]bool),
	}
}

// canSubscribe reports whether enough nodes have subscriptions at all.
func (m *Manager) canSubscribe() bool {
	able := 0
	for _, p := range m.peers {
		if _, ok := p.node.(subscriber); ok {
			able++
		}
	}
	return able >= m.Quorum()
}

func (ls *listener) add(m *Manager, w *Watch) {
	node, ok := ls.peer.node.(subscriber)
	if !ok {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.watches[w.channel] == nil {
		ls.watches[w.channel] = make(map[*Watch]struct{})
	}
	ls.watches[w.channel][w] = struct{}{}
	if ls.joined[w.channel] {
		w.onSubscribed(ls.peer.index)
	}
	if !ls.working {
		ls.working = m.spawn(func() { ls.work(m.ctx, node) })
	}
	ls.wakeUp()
}

func (ls *listener) remove(w *Watch) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.watches[w.channel], w)
	if len(ls.watches[w.channel]) == 0 {
		delete(ls.watches, w.channel)
	}
	ls.wakeUp()
}

func (ls *listener) wakeUp() {
	select {
	case ls.kick <- struct{}{}:
	default:
	}
}

// work owns the connection.
func (ls *listener) work(ctx context.Context, node subscriber) {
	sub := node.Subscribe(ctx)
	defer sub.Close()
	var messages <-chan any
	subscribed := make(map[string]bool)
	for {
		select {
		case <-ls.kick:
			join, leave, idle := ls.changes(subscribed)
			if idle {
				return
			}
			// The client remembers the channels, and subscribes again when an error broke the connection.
			if len(join) > 0 {
				_ = sub.Subscribe(ctx, join...)
			}
			if len(leave) > 0 {
				_ = sub.Unsubscribe(ctx, leave...)
			}
			if messages == nil {
				messages = sub.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(pingInterval))
			}
		case msg, ok := <-messages:
			if !ok {
				messages = nil
			}
			ls.hear(msg)
		case <-ctx.Done():
			ls.stop()
			return
		}
	}
}

// changes brings subscribed up to date and returns what that takes. When nothing is watched any more the
// goroutine is told to end; the next watch starts another.
func (ls *listener) changes(subscribed map[string]bool) (join, leave []string, idle bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(ls.watches) == 0 {
		ls.working = false
		clear(ls.joined)
		return nil, nil, true
	}
	for c := range ls.watches {
		if !subscribed[c] {
			subscribed[c] = true
			join = append(join, c)
		}
	}
	for c := range subscribed {
		if ls.watches[c] == nil {
			delete(subscribed, c)
			delete(ls.joined, c)
			leave = append(leave, c)
		}
	}
	return join, leave, false
}

func (ls *listener) stop() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.working = false
	clear(ls.joined)
}

// hear passes on what the connection says.
func (ls *listener) hear(msg any) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch msg := msg.(type) {
	case *redis.Message:
		for w := range ls.watches[msg.Channel] {
			w.onRelease(ls.peer.index)
		}
	case *redis.Subscription:
		if msg.Kind != "subscribe" || ls.watches[msg.Channel] == nil {
			return
		}
		ls.joined[msg.Channel] = true
		for w := range ls.watches[msg.Channel] {
			w.onSubscribed(ls.peer.index)
		}
	}
}
