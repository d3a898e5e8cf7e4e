package redistest

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// Direction of traffic through a proxy.
type Direction int

const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// Proxy is a TCP proxy between a client and a server that can hold, delay, lose and cut what passes. It is safe
// for concurrent use. Everything applies to the connections that there are and to those to come.
type Proxy struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu       sync.Mutex
	changed  *sync.Cond
	conns    map[*proxied]struct{}
	held     Direction
	dropped  Direction
	delay    map[Direction]time.Duration
	holdOn   map[Direction][]byte // a connection is held from the chunk on that contains this
	cutOn    []byte               // a command that contains this gets no reply, and the connection breaks; once
	refusing bool
	closed   bool
}

// proxied is one connection.
type proxied struct {
	client, server net.Conn
	held           Direction // by HoldMatching
	mute           bool      // by CutOnReply: the next reply is lost, and the connection with it
	once           sync.Once
}

// NewProxy starts a proxy in front of target, which ends with the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{
		target:   target,
		listener: l,
		conns:    make(map[*proxied]struct{}),
		delay:    make(map[Direction]time.Duration),
		holdOn:   make(map[Direction][]byte),
	}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// Addr returns the address that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Hold keeps what is sent in these directions, in order, until Release.
func (p *Proxy) Hold(d Direction) { p.change(func() { p.held |= d }) }

// HoldMatching keeps, until Release, what is sent in this direction on any connection from the first chunk on
// that contains text; other connections are not held.
func (p *Proxy) HoldMatching(d Direction, text string) {
	p.change(func() { p.holdOn[d] = []byte(text) })
}

// Drop loses what is sent in these directions, until Release.
func (p *Proxy) Drop(d Direction) { p.change(func() { p.dropped |= d }) }

// Delay lets every chunk take d longer; 0 ends that.
func (p *Proxy) Delay(dir Direction, d time.Duration) { p.change(func() { p.delay[dir] = d }) }

// Release ends Hold, HoldMatching and Drop: what was held is delivered.
func (p *Proxy) Release(d Direction) {
	p.change(func() {
		p.held &^= d
		p.dropped &^= d
		for dir := range p.holdOn {
			if dir&d != 0 {
				delete(p.holdOn, dir)
			}
		}
		for c := range p.conns {
			c.held &^= d
		}
	})
}

// CutOnReply has the next command that contains text executed, its reply lost, and its connection cut.
func (p *Proxy) CutOnReply(text string) { p.change(func() { p.cutOn = []byte(text) }) }

// Cut breaks all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
	p.changed.Broadcast()
}

// Refuse breaks all connections, and every new one at once.
func (p *Proxy) Refuse() {
	p.change(func() { p.refusing = true })
	p.Cut()
}

// Accept ends Refuse.
func (p *Proxy) Accept() { p.change(func() { p.refusing = false }) }

func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.changed.Broadcast()
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.change(func() { p.closed = true })
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	c := &proxied{client: client, server: server}
	p.mu.Lock()
	refused := p.refusing || p.closed
	if !refused {
		p.conns[c] = struct{}{}
	}
	p.mu.Unlock()
	if refused {
		c.close()
		return
	}
	var relays sync.WaitGroup
	relays.Go(func() { p.relay(c, ToServer) })
	relays.Go(func() { p.relay(c, ToClient) })
	relays.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// close breaks the connection on both sides, with a reset where the system does that.
func (c *proxied) close() {
	c.once.Do(func() {
		for _, conn := range []net.Conn{c.client, c.server} {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = conn.Close()
		}
	})
}

// chunk is what was read at once.
type chunk struct {
	at    time.Time
	bytes []byte
}

// relay passes on one direction. Reading goes on while delivery is held, so that a client never notices by a full
// buffer. What the client has sent is delivered also when it has closed the connection meanwhile.
func (p *Proxy) relay(c *proxied, d Direction) {
	from, to := c.client, c.server
	if d == ToClient {
		from, to = c.server, c.client
	}
	queue := make(chan chunk, 4096)
	p.wg.Go(func() {
		defer close(queue)
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				queue <- chunk{time.Now(), bytes.Clone(buf[:n])}
			}
			if err != nil {
				return
			}
		}
	})
	deliverable := true
	for ch := range queue { // also what came before the connection ended
		if !p.pass(c, d, ch) || !deliverable {
			continue
		}
		if _, err := to.Write(ch.bytes); err != nil {
			deliverable = false
			if d == ToServer {
				c.close() // the client must notice; that a client is gone does not undo what it has sent
			}
		}
	}
	c.close()
}

// pass waits until a chunk may go on, and reports whether it does.
func (p *Proxy) pass(c *proxied, d Direction, ch chunk) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text := p.holdOn[d]; text != nil && bytes.Contains(ch.bytes, text) {
		c.held |= d
	}
	if wait := p.delay[d]; wait > 0 {
		p.mu.Unlock()
		time.Sleep(time.Until(ch.at.Add(wait)))
		p.mu.Lock()
	}
	for (p.held|c.held)&d != 0 && !p.closed {
		p.changed.Wait()
	}
	if d == ToClient && c.mute {
		c.close()
		return false
	}
	if d == ToServer && p.cutOn != nil && bytes.Contains(ch.bytes, p.cutOn) {
		p.cutOn = nil
		c.mute = true
	}
	return p.dropped&d == 0 && !p.closed
}
