package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// pingInterval is how often an idle subscription is probed. A dead one costs no more than the time to
	// the end of a TTL: waiters look then in any case.
	pingInterval = 2 * time.Minute

	// reconnectPause is the time after a subscription that could not be made.
	reconnectPause = 200 * time.Millisecond
)

// listener is the one subscription connection to a node, shared by all watches. Its goroutine lives for as
// long as there are any: it brings the channels that are subscribed to in line with those that are watched.
type listener struct {
	peer *peer
	kick chan struct{} // holds a token when the watches have changed

	mu      sync.Mutex
	watches map[string]map[*Watch]struct{} // by channel
	joined  map[string]bool                // channels asked for on this connection; true: the server has confirmed
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
		if _, ok := p.subscriber(); ok {
			able++
		}
	}
	return able >= m.Quorum()
}

func (ls *listener) add(m *Manager, w *Watch) {
	node, ok := ls.peer.subscriber()
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

// work makes one connection after the other, until nothing is watched any more.
func (ls *listener) work(ctx context.Context, node subscriber) {
	for !ls.idle(ctx) {
		confirmed := ls.connect(ctx, node)
		ls.disconnected()
		if !confirmed {
			_ = sleep(ctx, reconnectPause)
		}
	}
}

// idle reports whether the goroutine can end; then the next watch starts another.
func (ls *listener) idle(ctx context.Context) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.working = len(ls.watches) > 0 && ctx.Err() == nil
	return !ls.working
}

// noReconnect is given to the client where it would otherwise make a new connection by itself, and hold its
// lock for as long as that takes: dialling fails at once.
var noReconnect = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// connect keeps one connection for as long as it lasts and is needed, and reports whether it came about.
func (ls *listener) connect(ctx context.Context, node subscriber) (confirmed bool) {
	join, _ := ls.changes()
	sub := subscribe(ctx, node, join)
	if sub == nil {
		return false
	}
	var receiver sync.WaitGroup
	messages, ended := make(chan any), make(chan struct{})
	defer receiver.Wait()
	defer close(ended)
	defer sub.Close()

	receiver.Go(func() { receive(sub, messages, ended) })
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	for quiet := false; ; {
		select {
		case <-ls.kick:
			join, leave := ls.changes()
			if len(join) > 0 {
				_ = sub.Subscribe(noReconnect, join...) // an error ends the connection, and so the receiver
			}
			if len(leave) > 0 {
				_ = sub.Unsubscribe(noReconnect, leave...)
			}
			if ls.unwatched() {
				return confirmed
			}
		case msg, ok := <-messages:
			if !ok {
				return confirmed
			}
			quiet = false
			confirmed = ls.hear(msg) || confirmed
		case <-ping.C:
			if quiet {
				return confirmed // not even the last ping was answered
			}
			quiet = true
			_ = sub.Ping(noReconnect)
		case <-ctx.Done():
			return confirmed
		}
	}
}

// subscribe returns a subscription to channels, or nil. One that could not be made ends at the first look at it.
func subscribe(ctx context.Context, node subscriber, channels []string) (sub *redis.PubSub) {
	if len(channels) == 0 {
		return nil
	}
	defer func() {
		if recover() != nil { // which a Ring behind another client does when all its shards are down
			sub = nil
		}
	}()
	return node.Subscribe(ctx, channels...)
}

// receive hands over what the server says, until the connection breaks.
func receive(sub *redis.PubSub, messages chan<- any, ended <-chan struct{}) {
	defer close(messages)
	for {
		msg, err := sub.Receive(noReconnect)
		if err != nil && !isReply(err) {
			return
		}
		select {
		case messages <- msg:
		case <-ended:
			return
		}
	}
}

func (ls *listener) unwatched() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.watches) == 0
}

// changes returns what brings the subscriptions in line with the watches, and notes that it is being done.
func (ls *listener) changes() (join, leave []string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for c := range ls.watches {
		if _, asked := ls.joined[c]; !asked {
			ls.joined[c] = false
			join = append(join, c)
		}
	}
	for c := range ls.joined {
		if ls.watches[c] == nil {
			delete(ls.joined, c)
			leave = append(leave, c)
		}
	}
	return join, leave
}

// disconnected notes that nothing is heard any more.
func (ls *listener) disconnected() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	clear(ls.joined)
	for _, ws := range ls.watches {
		for w := range ws {
			w.onDisconnected(ls.peer.index)
		}
	}
}

// hear passes on what the connection says, and reports whether it confirms a subscription.
func (ls *listener) hear(msg any) (confirmed bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch msg := msg.(type) {
	case *redis.Message:
		for w := range ls.watches[msg.Channel] {
			w.onRelease(ls.peer.index)
		}
	case *redis.Subscription:
		if _, asked := ls.joined[msg.Channel]; !asked || msg.Kind != "subscribe" {
			return false
		}
		ls.joined[msg.Channel] = true
		for w := range ls.watches[msg.Channel] {
			w.onSubscribed(ls.peer.index)
		}
		return true
	}
	return false
}
