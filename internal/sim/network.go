package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// direction of traffic on a link.
type direction int

const (
	toServer direction = iota
	toClient
)

// link is the network between one candidate and one node. Its faults are windows in virtual time, fixed by
// the plan; what it does in between is a small random delay. Like TCP it keeps the order within a connection,
// and may deliver what a client had sent before it closed.
type link struct {
	node    *miniredis.Miniredis
	latency time.Duration // the longest of a message when nothing is wrong
	windows []window

	mu    sync.Mutex
	rng   *rand.Rand
	conns map[*conn]struct{}
}

// window is a fault of a link from one moment to another, after the start of the run.
type window struct {
	kind     faultKind
	from, to time.Time
	dirs     [2]bool       // for silent, slow and flaky
	delay    time.Duration // for slow
}

type faultKind int

const (
	none    faultKind = iota // the links stay as they are
	silent                   // what is sent arrives when the window is over
	slow                     // everything takes longer
	refused                  // no connections, and those that there are break at its beginning
	flaky                    // a third of what is sent is lost, and its connection breaks
)

var errRefused = errors.New("connection refused")

// conn is one connection, with a relay for each direction.
type conn struct {
	link           *link
	client, server net.Conn // the relay's ends
	broken         chan struct{}
	once           sync.Once
}

// dial connects a client.
func (l *link) dial(ctx context.Context) (net.Conn, error) {
	if l.refuses(time.Now()) || ctx.Err() != nil {
		return nil, &net.OpError{Op: "dial", Net: "sim", Err: errRefused}
	}
	server, err := l.node.Dial()
	if err != nil {
		return nil, err
	}
	theirs, ours := net.Pipe()
	c := &conn{link: l, client: ours, server: server, broken: make(chan struct{})}
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	up, down := make(chan parcel, 1024), make(chan parcel, 1024)
	go c.read(c.client, toServer, up)
	go c.read(c.server, toClient, down)
	go c.deliver(c.server, up, toServer)
	go c.deliver(c.client, down, toClient)
	return theirs, nil
}

// parcel is a piece of a byte stream and the moment at which it arrives.
type parcel struct {
	at    time.Time
	bytes []byte
}

// read takes what one side sends and decides when it will arrive.
func (c *conn) read(from net.Conn, dir direction, out chan<- parcel) {
	defer close(out)
	last := time.Now()
	buf := make([]byte, 4<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if c.link.loses(dir, time.Now()) {
				c.breakUp()
				if dir == toServer {
					return
				}
			}
			if at := c.link.arrival(dir, time.Now()); at.After(last) {
				last = at
			}
			out <- parcel{last, append([]byte(nil), buf[:n]...)}
		}
		if err != nil {
			return
		}
	}
}

// deliver hands over parcels when their time has come. What a client sent before its connection ended still
// arrives at the server; the other direction has nobody left to read it.
func (c *conn) deliver(to net.Conn, in <-chan parcel, dir direction) {
	defer c.close(dir)
	for p := range in {
		if dir == toClient {
			timer := time.NewTimer(time.Until(p.at))
			select {
			case <-timer.C:
			case <-c.broken:
				timer.Stop()
				drain(in)
				return
			}
		} else {
			time.Sleep(time.Until(p.at))
		}
		if _, err := to.Write(p.bytes); err != nil {
			drain(in)
			return
		}
	}
}

func drain(in <-chan parcel) {
	for range in {
	}
}

// close ends a direction: when the server has got everything it is told of the end; a client at once.
func (c *conn) close(dir direction) {
	if dir == toServer {
		_ = c.server.Close()
		c.breakUp()
		c.link.mu.Lock()
		delete(c.link.conns, c)
		c.link.mu.Unlock()
	} else {
		_ = c.client.Close()
	}
}

// breakUp ends the connection as the client sees it.
func (c *conn) breakUp() {
	c.once.Do(func() {
		close(c.broken)
		_ = c.client.Close()
	})
}

// breakAll ends all connections of the link.
func (l *link) breakAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.breakUp()
	}
}

// arrival decides when something sent now arrives.
func (l *link) arrival(dir direction, now time.Time) time.Time {
	l.mu.Lock()
	at := now.Add(50*time.Microsecond + time.Duration(l.rng.Int64N(int64(l.latency))))
	l.mu.Unlock()
	for _, w := range l.windows {
		if now.Before(w.from) || !now.Before(w.to) || !w.dirs[dir] {
			continue
		}
		switch w.kind {
		case silent:
			if w.to.After(at) {
				at = w.to
			}
		case slow:
			at = at.Add(w.delay)
		}
	}
	return at
}

// loses decides whether something sent now is lost.
func (l *link) loses(dir direction, now time.Time) bool {
	for _, w := range l.windows {
		if w.kind == flaky && w.dirs[dir] && !now.Before(w.from) && now.Before(w.to) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.rng.IntN(3) == 0
		}
	}
	return false
}

func (l *link) refuses(now time.Time) bool {
	for _, w := range l.windows {
		if w.kind == refused && !now.Before(w.from) && now.Before(w.to) {
			return true
		}
	}
	return false
}
