package redistest

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

const chunkSize = 64 << 10 // bytes

// link is one connection through a proxy: its two ends, and a pipe for each direction. Proxy.mu guards what changes.
type link struct {
	proxy   *Proxy
	client  *net.TCPConn
	server  *net.TCPConn  // nil until it is connected
	done    chan struct{} // closed by cut
	isCut   bool
	cutNext bool // the next chunk from the server is lost, and the link cut
	pipes   [2]*pipe
}

// newLink registers a connection, or resets it and returns nil.
func (p *Proxy) newLink(client *net.TCPConn) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		reset(client)
		return nil
	}
	l := &link{proxy: p, client: client, done: make(chan struct{})}
	for i := range l.pipes {
		l.pipes[i] = &pipe{link: l, lane: &p.lanes[i], toServer: directionOf(i) == ToServer, wake: make(chan struct{}, 1)}
		if p.silence {
			l.pipes[i].queue = []chunk{{stop: true}} // nothing, but all the rest is behind it
		}
	}
	p.links[l] = struct{}{}
	return l
}

// run passes traffic until both sides have ended, or the link is cut.
func (l *link) run() {
	if l.connect() {
		var wg sync.WaitGroup
		for i, ends := range [...]struct{ from, to *net.TCPConn }{{l.client, l.server}, {l.server, l.client}} {
			wg.Go(func() { l.pipes[i].read(ends.from) })
			wg.Go(func() { l.pipes[i].write(ends.to) })
		}
		wg.Wait()
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.cut()
	delete(l.proxy.links, l)
}

// connect dials the server; false if there is none, or the link has been cut meanwhile.
func (l *link) connect() bool {
	var d net.Dialer
	conn, err := d.DialContext(l.proxy.ctx, "tcp", l.proxy.target)
	if err != nil {
		return false
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.server = conn.(*net.TCPConn)
	if l.isCut {
		reset(l.server)
	}
	return !l.isCut
}

// cut resets both ends, which ends what reads and writes. Proxy.mu is held.
func (l *link) cut() {
	if l.isCut {
		return
	}
	l.isCut = true
	close(l.done)
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
}

// reset closes conn such that the other side has an error, not an end.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// pipe is one direction of a link: a queue of any length, that one goroutine fills and another empties, so that
// neither side notices that the other is held. Proxy.mu guards what changes.
type pipe struct {
	link     *link
	lane     *lane
	toServer bool
	queue    []chunk
	wake     chan struct{} // the writer has to look again
}

type chunk struct {
	data []byte
	end  bool      // of what the sender sends
	stop bool      // held, and so is what follows
	due  time.Time // not before
}

// read queues what comes from one end, until that closes.
func (q *pipe) read(from *net.TCPConn) {
	buf := make([]byte, chunkSize)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			q.push(chunk{data: bytes.Clone(buf[:n])})
		}
		if err != nil {
			q.push(chunk{end: true})
			return
		}
	}
}

func (q *pipe) push(c chunk) {
	p := q.link.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.lane.drop && !c.end {
		return
	}
	if q.link.cutNext && !q.toServer {
		q.link.cut()
		return
	}
	c.stop = slices.ContainsFunc(q.lane.holdOn, func(substr string) bool { return strings.Contains(string(c.data), substr) })
	if q.lane.delay > 0 {
		c.due = time.Now().Add(q.lane.delay)
	}
	q.queue = append(q.queue, c)
	q.look()
}

// write sends what is queued to the other end, until it has sent the end or the link is cut. An end that takes
// nothing any more is no reason to stop: the rest is lost on it.
func (q *pipe) write(to *net.TCPConn) {
	for {
		c, wait := q.next()
		switch {
		case wait != nil:
			select {
			case <-wait:
			case <-q.wake:
			case <-q.link.done:
				return
			}
		case c.end:
			_ = to.CloseWrite()
			return
		default:
			_, _ = to.Write(c.data)
		}
	}
}

// forever is a wait that only a wake ends.
var forever = make(<-chan time.Time)

// next takes the chunk whose turn it is, or returns what to wait for.
func (q *pipe) next() (chunk, <-chan time.Time) {
	p := q.link.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(q.queue) == 0 {
		return chunk{}, forever
	}
	c := q.queue[0]
	if q.lane.hold || c.stop || c.end && q.lane.drop {
		return chunk{}, forever
	}
	if wait := time.Until(c.due); wait > 0 {
		return chunk{}, time.After(wait)
	}
	q.queue = q.queue[1:]
	if q.toServer && p.takeCut(c.data) {
		q.link.cutNext = true
	}
	return c, nil
}

// look has the writer look at the queue again.
func (q *pipe) look() {
	select {
	case q.wake <- struct{}{}:
	default: // it will
	}
}

func (q *pipe) release() {
	for i := range q.queue {
		q.queue[i].stop = false
	}
	q.look()
}

func (q *pipe) size() (n int) {
	for _, c := range q.queue {
		n += len(c.data)
	}
	return n
}
