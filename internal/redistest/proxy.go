package redistest

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Direction is that of the traffic which a Proxy disturbs.
type Direction int

// The directions of traffic: of commands, of replies, and either.
const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// Proxy is a TCP proxy between clients and one server, that breaks the network at a test's command. Traffic passes
// in chunks, which are what one read returns, up to 64 KiB: a command that a client sends on its own is one. What
// disturbs a direction does so on all connections, also on those opened later.
//
// Where a chunk is looked for by a part of it, know that go-redis sends its own commands when it connects (hello,
// client setinfo), and names of commands in lower case: the name of a key is the safest mark.
//
// A client that closes its connection does not take back what it has sent: it arrives once it is released, and the
// end of the connection after it. Its methods are safe for concurrent use.
type Proxy struct {
	target string
	ln     net.Listener
	ctx    context.Context // until the test ends
	cancel context.CancelFunc
	wg     sync.WaitGroup // the acceptor and the links

	mu      sync.Mutex
	lanes   [2]lane // of ToServer and ToClient
	links   map[*link]struct{}
	refuse  bool
	silence bool
	cutOn   []string
}

// lane is what happens to one direction. Proxy.mu guards it.
type lane struct {
	hold   bool
	drop   bool
	delay  time.Duration
	holdOn []string
}

// NewProxy starts a proxy in front of the server at target. It ends with the test, and cuts what is open then.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		tb.Fatalf("cannot listen for a proxy of %s: %v", target, err)
	}
	p := &Proxy{target: target, ln: ln, links: make(map[*link]struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	tb.Cleanup(p.end)
	return p
}

// Addr returns the host:port at which the server is reached through the proxy.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Hold keeps, in order, what is sent in dir from now on, until Release.
func (p *Proxy) Hold(dir Direction) { p.set(dir, func(l *lane) { l.hold = true }) }

// HoldMatching holds single connections in dir, until Release: each one from the first chunk on that contains
// substr. Other connections, and the other direction, go on.
func (p *Proxy) HoldMatching(dir Direction, substr string) {
	p.set(dir, func(l *lane) { l.holdOn = append(l.holdOn, substr) })
}

// Drop loses what is sent in dir until Release. Connections stay open, and when they are closed the other side
// learns of it after Release only.
func (p *Proxy) Drop(dir Direction) { p.set(dir, func(l *lane) { l.drop = true }) }

// Delay has each chunk sent in dir arrive d later, in order. 0 ends that for what is sent from then on.
func (p *Proxy) Delay(dir Direction, d time.Duration) {
	p.set(dir, func(l *lane) { l.delay = d })
}

// Release ends Hold, HoldMatching and Drop in dir, and what SilenceNew holds: what was held goes on in order.
func (p *Proxy) Release(dir Direction) {
	p.set(dir, func(l *lane) {
		*l = lane{delay: l.delay}
		for k := range p.links {
			for _, q := range k.pipes {
				if q.lane == l {
					q.release()
				}
			}
		}
	})
}

// Held returns how many bytes wait in dir, held or delayed, so that a test can wait until there are some.
func (p *Proxy) Held(dir Direction) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		for i, q := range l.pipes {
			if dir&directionOf(i) != 0 {
				n += q.size()
			}
		}
	}
	return n
}

// CutOnReply has, once for each call, a chunk that contains substr reach the server, and its answer not the client:
// the next chunk from the server on that connection is lost and the connection cut.
func (p *Proxy) CutOnReply(substr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutOn = append(p.cutOn, substr)
}

// Cut resets all connections on both sides at once; what is held on them is lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

// Refuse is Cut, with new connections reset at once until Accept.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = true
	p.cut()
}

// SilenceNew has connections opened from now on accepted and held in both directions, as by a firewall that knows
// the old ones only. Accept ends that for later connections, Release for those that are held.
func (p *Proxy) SilenceNew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silence = true
}

// Accept ends Refuse and SilenceNew.
func (p *Proxy) Accept() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse, p.silence = false, false
}

// set changes the lanes of dir, with p.mu held.
func (p *Proxy) set(dir Direction, change func(*lane)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.lanes {
		if dir&directionOf(i) != 0 {
			change(&p.lanes[i])
		}
	}
}

// directionOf returns the direction of the i-th lane, or pipe.
func directionOf(i int) Direction { return ToServer << i }

// cut cuts all links. p.mu is held.
func (p *Proxy) cut() {
	for l := range p.links {
		l.cut()
	}
}

// end is what the test's cleanup does. It does not wait for anything that is held or delayed.
func (p *Proxy) end() {
	p.Refuse()
	p.cancel()
	_ = p.ln.Close()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			return
		}
		if l := p.newLink(conn.(*net.TCPConn)); l != nil {
			p.wg.Go(l.run)
		}
	}
}

// takeCut tells whether CutOnReply waits for this chunk, and uses it up. p.mu is held.
func (p *Proxy) takeCut(chunk []byte) bool {
	i := slices.IndexFunc(p.cutOn, func(substr string) bool { return strings.Contains(string(chunk), substr) })
	if i < 0 {
		return false
	}
	p.cutOn = slices.Delete(p.cutOn, i, i+1)
	return true
}
