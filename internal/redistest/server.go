// Package redistest starts real redis-server processes for a test, and a TCP proxy that misbehaves on demand.
//
// Tests run against servers that they start themselves, on loopback and in temporary folders, or against given
// ones: see Single and Redlock.
package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startTimeout bounds the time until a server answers.
const startTimeout = 10 * time.Second

// Server is a redis-server process of a test. Its methods are for the goroutine of the test.
type Server struct {
	tb   testing.TB
	dir  string
	port int
	args []string
	cmd  *exec.Cmd
	log  *bytes.Buffer

	client *redis.Client
}

// Option changes how a server is started.
type Option func(*Server)

// WithAOF has the server write every command to disk before it answers.
func WithAOF() Option { return WithArgs("--appendonly", "yes", "--appendfsync", "always") }

// WithArgs passes further arguments to redis-server.
func WithArgs(args ...string) Option {
	return func(s *Server) { s.args = append(s.args, args...) }
}

// Start starts a server, which ends with the test.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	requireServer(tb)
	s := &Server{tb: tb, dir: tb.TempDir()}
	for _, o := range opts {
		o(s)
	}
	tb.Cleanup(s.Kill)
	var err error
	for range 5 { // somebody else may take the port before the server does
		s.port = freePort(tb)
		if err = s.launch(); err == nil {
			return s
		}
	}
	tb.Fatal(err)
	return nil
}

// StartN starts n independent servers.
func StartN(tb testing.TB, n int, opts ...Option) []*Server {
	tb.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = Start(tb, opts...)
	}
	return servers
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// launch starts the process and waits until it answers.
func (s *Server) launch() error {
	args := append([]string{
		"--bind", "127.0.0.1", "--port", fmt.Sprint(s.port), "--dir", s.dir, "--save", "", "--daemonize", "no",
	}, s.args...)
	s.log = new(bytes.Buffer)
	s.cmd = exec.Command("redis-server", args...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	dieWithParent(s.cmd)
	if err := s.cmd.Start(); err != nil {
		return err
	}
	if err := s.awaitReady(); err != nil {
		s.Kill()
		return fmt.Errorf("redis-server on port %d: %w; it says:\n%s", s.port, err, s.log)
	}
	return nil
}

func (s *Server) awaitReady() error {
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1})
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		// A server that wants a password is up as well. Another process on the port answers with another pid.
		info, err := c.Info(ctx, "server").Result()
		if err == nil && !strings.Contains(info, fmt.Sprintf("process_id:%d\r", s.Pid())) {
			return errors.New("the port is another server's")
		}
		if reply := redis.Error(nil); err == nil || errors.As(err, &reply) && !strings.HasPrefix(err.Error(), "LOADING") {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// Addr returns host:port.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Pid returns the id of the process.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Client returns a client for the test to look at the server with.
func (s *Server) Client() *redis.Client {
	if s.client == nil {
		s.client = redis.NewClient(&redis.Options{Addr: s.Addr(), DialTimeout: time.Second, ReadTimeout: 2 * time.Second})
		s.tb.Cleanup(func() { _ = s.client.Close() })
	}
	return s.client
}

// Kill ends the process with SIGKILL, also a stopped one. What it has not written to disk is gone.
func (s *Server) Kill() {
	if s.cmd == nil || s.cmd.Process == nil || s.cmd.ProcessState != nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // an error says that it was killed
}

// Restart starts a killed or running server again on its port, with what it has on disk.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	if err := s.launch(); err != nil {
		s.tb.Fatal(err)
	}
}

// RestartEmpty is Restart after the data are removed from the disk.
func (s *Server) RestartEmpty() {
	s.tb.Helper()
	s.Kill()
	files, _ := filepath.Glob(filepath.Join(s.dir, "*"))
	for _, f := range files {
		if err := os.RemoveAll(f); err != nil {
			s.tb.Fatal(err)
		}
	}
	s.Restart()
}

// Stop stops the process with SIGSTOP: it accepts connections and never answers. Continue ends that.
func (s *Server) Stop() { s.signal(stopSignal) }

// Continue lets a stopped process go on.
func (s *Server) Continue() { s.signal(continueSignal) }

func (s *Server) signal(sig os.Signal) {
	s.tb.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatalf("signal %v to redis-server %d: %v", sig, s.Pid(), err)
	}
}

var lookPath = sync.OnceValue(func() error {
	_, err := exec.LookPath("redis-server")
	return err
})

// requireServer ends the test where there is no redis-server: as failed where it must run, as skipped elsewhere.
func requireServer(tb testing.TB) {
	tb.Helper()
	if lookPath() == nil {
		return
	}
	const need = "redis-server is not on the PATH: install it (Debian: apt-get install redis-server, macOS: brew install redis)"
	if os.Getenv("CI") != "" || os.Getenv("REDISTEST_REQUIRED") != "" {
		tb.Fatal(need)
	}
	tb.Skip(need)
}

func addrs(servers []*Server) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return list
}
