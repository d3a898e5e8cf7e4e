package redistest

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// short is longer than a reply takes and as long as these tests wait for one that must not come.
const short = 300 * time.Millisecond

// behindProxy returns a server, a proxy in front of it, and a client that is connected through that.
func behindProxy(t *testing.T) (*Server, *Proxy, *redis.Client) {
	t.Helper()
	s := Start(t)
	p := NewProxy(t, s.Addr())
	c := client(t, p.Addr(), short)
	set(t, c, "warm")
	return s, p, c
}

func lost(t *testing.T, c *redis.Client, key string) {
	t.Helper()
	if err := c.Set(t.Context(), key, "v", 0).Err(); err == nil {
		t.Fatalf("set %s was answered", key)
	}
}

func has(t *testing.T, s *Server, key string) bool {
	t.Helper()
	n, err := s.Client().Exists(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}

// echo is a connection through a proxy to a server that returns what it gets.
func echo(t *testing.T) (*Proxy, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	served := make(chan struct{})
	go func() {
		defer close(served)
		if conn, err := ln.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	p := NewProxy(t, ln.Addr().String())
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); p.Cut(); <-served })
	return p, conn
}

func TestOrderIsKept(t *testing.T) {
	for _, tt := range []struct {
		name          string
		disturb, mend func(*Proxy)
	}{
		{"held to server", func(p *Proxy) { p.Hold(ToServer) }, func(p *Proxy) { p.Release(ToServer) }},
		{"held to client", func(p *Proxy) { p.Hold(ToClient) }, func(p *Proxy) { p.Release(ToClient) }},
		{"held from the third", func(p *Proxy) { p.HoldMatching(ToServer, "3") }, func(p *Proxy) { p.Release(Both) }},
		{"delay taken back", func(p *Proxy) { p.Delay(Both, 20*time.Millisecond) }, func(p *Proxy) { p.Delay(Both, 0) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, conn := echo(t)
			tt.disturb(p)
			var want string
			for i := range 10 {
				if i == 7 {
					tt.mend(p)
				}
				s := fmt.Sprintf("<%d>", i)
				want += s
				_, _ = io.WriteString(conn, s)
				time.Sleep(time.Millisecond)
			}
			got := make([]byte, len(want))
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
				t.Fatalf("got %s, %v; want %s", got, err, want)
			}
		})
	}
}

func TestHold(t *testing.T) {
	s, p, c := behindProxy(t)
	p.Hold(ToServer)
	lost(t, c, "a") // the client closes the connection
	if p.Held(ToServer) == 0 || p.Held(ToClient) != 0 || has(t, s, "a") {
		t.Fatal("the command was not held, or something else was")
	}
	lost(t, c, "b") // on a connection opened later, from its first byte on
	p.Release(ToServer)
	eventually(t, "the command arrives, late", func() bool { return has(t, s, "a") })
	set(t, c, "c")
}

func TestHoldReplies(t *testing.T) {
	s, p, c := behindProxy(t)
	p.Hold(ToClient)
	lost(t, c, "a")
	if !has(t, s, "a") {
		t.Fatal("the command was held too")
	}
	p.Release(Both)
	set(t, c, "b")
}

func TestDelay(t *testing.T) {
	const d = 20 * time.Millisecond
	for dir, want := range map[Direction]time.Duration{ToServer: d, ToClient: d, Both: 2 * d} {
		_, p, c := behindProxy(t)
		p.Delay(dir, d)
		begin := time.Now()
		set(t, c, "a")
		if took := time.Since(begin); took < want {
			t.Errorf("direction %d: a reply that must take %v took %v", dir, want, took)
		}
		p.Delay(dir, 0)
		set(t, c, "b")
	}
}

func TestDrop(t *testing.T) {
	s, p, c := behindProxy(t)
	p.Drop(ToServer)
	lost(t, c, "a")
	p.Release(ToServer)
	set(t, c, "b")
	if has(t, s, "a") {
		t.Fatal("the command was not lost")
	}
}

func TestHoldMatching(t *testing.T) {
	for _, dir := range []Direction{ToServer, Both} {
		s, p, c := behindProxy(t)
		p.HoldMatching(dir, "slow")
		lost(t, c, "slow")
		set(t, c, "other") // on another connection
		if has(t, s, "slow") {
			t.Fatal("the command was not held")
		}
		p.Release(dir)
		eventually(t, "the command arrives, late", func() bool { return has(t, s, "slow") })
		set(t, c, "slow")
	}
}

func TestCutOnReply(t *testing.T) {
	s, p, c := behindProxy(t)
	p.CutOnReply("unlucky")
	set(t, c, "other")
	begin := time.Now()
	lost(t, c, "unlucky")
	if took := time.Since(begin); took >= short {
		t.Errorf("the client noticed after %v: a timeout, no cut", took)
	}
	if !has(t, s, "unlucky") {
		t.Fatal("the server has not applied it")
	}
	set(t, c, "unlucky") // once only
}

func TestCut(t *testing.T) {
	s, p, _ := behindProxy(t)
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	p.Hold(ToServer)
	_, _ = io.WriteString(conn, "SET held v\r\n")
	eventually(t, "the command is held", func() bool { return p.Held(ToServer) > 0 })
	p.Cut()
	if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the client was not reset: %v", err)
	}
	p.Release(Both)
	set(t, client(t, p.Addr(), short), "after")
	if has(t, s, "held") {
		t.Error("the command outlived the connection")
	}
}

func TestRefuseAndAccept(t *testing.T) {
	_, p, c := behindProxy(t)
	p.Refuse()
	lost(t, c, "a")
	p.Accept()
	set(t, c, "b")
}

func TestSilenceNew(t *testing.T) {
	s, p, c := behindProxy(t)
	p.SilenceNew()
	set(t, c, "old connection")
	late := client(t, p.Addr(), short)
	lost(t, late, "new connection")
	p.Accept()
	set(t, client(t, p.Addr(), short), "newer connection")
	p.Release(Both)
	if has(t, s, "new connection") { // the handshake was not answered, so the command was not sent
		t.Error("a silent connection was served")
	}
	set(t, late, "released")
}

func TestServerGone(t *testing.T) {
	s, p, c := behindProxy(t)
	s.Kill()
	lost(t, c, "a")
	s.Restart()
	set(t, c, "b")
	s.Stop()
	lost(t, c, "c")
	p.Cut()
}

// The cleanup waits neither for what is held or delayed nor for a server that stands still.
func TestEndDoesNotWait(t *testing.T) {
	s, p, c := behindProxy(t)
	p.Delay(ToServer, time.Hour)
	lost(t, c, "a")
	p.Hold(Both)
	lost(t, c, "b")
	s.Stop()
	begin := time.Now()
	p.end()
	if took := time.Since(begin); took > time.Second {
		t.Fatalf("the proxy took %v to end", took)
	}
}
