package bubble

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Direction of traffic over a link.
type Direction int

const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// Link is the network between one process and a server, which a test can cut, silence, hold, delay and mend. Like
// TCP it keeps the order of what is sent on a connection, and delivers what was sent before the client closed it.
// It is safe for concurrent use.
type Link struct {
	server *miniredis.Miniredis

	mu      sync.Mutex
	changed *sync.Cond // whenever a field below, or a stream's, has changed
	cut     bool
	lost    Direction
	held    Direction
	delay   map[Direction]time.Duration
	conns   map[*conn]struct{}
}

// NewLink returns a link to server that is up.
func NewLink(server *miniredis.Miniredis) *Link {
	l := &Link{server: server, delay: make(map[Direction]time.Duration), conns: make(map[*conn]struct{})}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Client returns a client whose connections all run over the link. It is closed when the test ends.
func (l *Link) Client(t testing.TB, change ...func(*redis.Options)) *redis.Client {
	o := Options(l.dial)
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() {
		_ = c.Close()
		l.Mend()
		time.Sleep(2 * time.Second) // a client that cannot connect looks every second whether it is closed
	})
	return c
}

// Cut breaks all connections and refuses new ones until Mend.
func (l *Link) Cut() {
	l.change(func() { l.cut = true })
	l.Break()
}

// Silence has whatever is sent from now on disappear, without an error, until Mend.
func (l *Link) Silence() { l.Drop(Both) }

// Drop is Silence in some directions only.
func (l *Link) Drop(d Direction) { l.change(func() { l.lost |= d }) }

// Hold keeps what is sent in these directions until Release, or until Mend has it disappear.
func (l *Link) Hold(d Direction) { l.change(func() { l.held |= d }) }

// Release delivers what is held in these directions, and holds no more.
func (l *Link) Release(d Direction) { l.change(func() { l.held &^= d }) }

// Delay has everything in these directions arrive d after it was sent; 0 ends that.
func (l *Link) Delay(dir Direction, d time.Duration) {
	l.change(func() {
		for _, one := range []Direction{ToServer, ToClient} {
			if dir&one != 0 {
				l.delay[one] = d
			}
		}
	})
}

// Mend ends Cut, Silence, Drop and Hold. All connections are broken: something may have disappeared on them.
func (l *Link) Mend() {
	l.Break()
	l.change(func() { l.cut, l.lost, l.held = false, 0, 0 })
}

// Break breaks all connections; new ones can be made at once if the link is up.
func (l *Link) Break() {
	l.change(func() {
		for c := range l.conns {
			c.broken = true
			c.close()
		}
		clear(l.conns)
	})
}

func (l *Link) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	l.changed.Broadcast()
}

var errCut = errors.New("connection refused: the link is cut")

func (l *Link) dial(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // as a dial over TCP does
	}
	// Before the lock: the server may be busy telling somebody something that our relays must read.
	server, err := l.server.Dial()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = server.Close()
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: errCut}
	}
	theirs, ours := net.Pipe()
	c := &conn{client: ours, server: server}
	l.conns[c] = struct{}{}
	l.relay(c, ToServer, ours, server)
	l.relay(c, ToClient, server, ours)
	return theirs, nil
}

// conn is one connection, as the link sees it.
type conn struct {
	client, server net.Conn
	broken         bool // nothing more is delivered
}

func (c *conn) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}

// stream is what is under way on a connection in one direction.
type stream struct {
	queue []chunk
	ended bool // nothing more will come
}

type chunk struct {
	sent  time.Time
	bytes []byte
}

// relay passes on what comes in one direction. Reading goes on while delivery waits, as if buffers were endless.
func (l *Link) relay(c *conn, d Direction, from, to net.Conn) {
	s := new(stream)
	go func() {
		buf := make([]byte, 4<<10)
		for {
			n, err := from.Read(buf)
			l.change(func() {
				if n > 0 {
					s.queue = append(s.queue, chunk{time.Now(), bytes.Clone(buf[:n])})
				}
				s.ended = err != nil
			})
			if err != nil {
				return
			}
		}
	}()
	go func() {
		for {
			ch, ok := l.next(c, s, d)
			if !ok {
				break
			}
			if _, err := to.Write(ch.bytes); err != nil && d == ToServer {
				break // that a client is gone undoes nothing of what it has sent
			}
		}
		l.change(func() { delete(l.conns, c) })
		if d == ToServer {
			c.close()
		} else {
			_ = c.client.Close()
		}
	}()
}

// next waits for what is to be delivered next; there is nothing when the stream is over.
func (l *Link) next(c *conn, s *stream, d Direction) (ch chunk, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for !c.broken && (len(s.queue) == 0 && !s.ended || l.held&d != 0) {
			l.changed.Wait()
		}
		if c.broken || len(s.queue) == 0 {
			return chunk{}, false
		}
		ch, s.queue = s.queue[0], s.queue[1:]
		if wait := time.Until(ch.sent.Add(l.delay[d])); l.delay[d] > 0 && wait > 0 {
			l.mu.Unlock()
			time.Sleep(wait)
			l.mu.Lock()
		}
		if l.lost&d == 0 && !c.broken {
			return ch, true
		}
	}
}
