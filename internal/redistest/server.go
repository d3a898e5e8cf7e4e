// Package redistest gives tests real Redis: redis-server processes of their own that can be killed, frozen and
// restarted, servers given by the environment, and a TCP proxy that breaks the network in between.
package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ndyakov/go-redlock/internal/process"
)

const (
	readyTimeout  = 10 * time.Second       // how long a server may take until it answers
	probeInterval = 5 * time.Millisecond   // between two looks whether it does
	attempts      = 5                      // a port that was free can be taken before the server has it
	attemptPause  = 100 * time.Millisecond // between two of them
	clientTimeout = 2 * time.Second        // of each operation of the client for inspection
	logTailBytes  = 2000                   // how much of a server's log an error quotes
)

// Server is a redis-server process that belongs to a test and ends with it. It listens on the loopback interface
// only, and keeps its address and its folder over restarts. Its methods are safe for concurrent use, but end the
// test when they fail, so they belong in the test's goroutine.
type Server struct {
	tb     testing.TB
	binary string
	dir    string   // the log, and the data in a folder of their own
	args   []string // what the options add
	env    []string // likewise
	addr   string
	client *redis.Client

	mu   sync.Mutex
	proc *process.Process // the latest one, it may have exited
}

// Option changes how a server is started.
type Option func(*Server)

// WithAOF has the server write each command to disk before it acknowledges it, so that Restart finds everything.
// Without it nothing is ever written.
func WithAOF() Option { return WithArgs("--appendonly", "yes", "--appendfsync", "always") }

// WithEnv adds variables to the server's environment, each as name=value.
func WithEnv(variables ...string) Option {
	return func(s *Server) { s.env = append(s.env, variables...) }
}

// WithArgs appends args to the server's command line. Given "--requirepass" and a password, Client uses it.
func WithArgs(args ...string) Option {
	return func(s *Server) { s.args = append(s.args, args...) }
}

// Start starts a server and returns once it answers.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	return StartN(tb, 1, opts...)[0]
}

// StartN starts n servers that know nothing of each other, and returns once all of them answer.
func StartN(tb testing.TB, n int, opts ...Option) []*Server {
	tb.Helper()
	binary := lookup(tb)
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = newServer(tb, binary, opts)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.startAnywhere() })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		tb.Fatalf("cannot start redis-server: %v", err)
	}
	return servers
}

func newServer(tb testing.TB, binary string, opts []Option) *Server {
	s := &Server{tb: tb, binary: binary, dir: tb.TempDir()}
	for _, o := range opts {
		o(s)
	}
	tb.Cleanup(s.end)
	return s
}

// Addr returns the server's host:port.
func (s *Server) Addr() string { return s.addr }

// Client returns a client with which the test looks at the server. It is the same one at each call, it does not
// try anything twice, and it is closed when the test ends.
func (s *Server) Client() *redis.Client { return s.client }

// Pid returns the server's process ID; after Kill, the last one that it had.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.Pid()
}

// Kill ends the server with SIGKILL, also one that is stopped, and returns once it is gone.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

// Stop freezes the server with SIGSTOP: its connections stay open, and new ones are made by the kernel, but
// nothing is answered until Continue. It returns once the server stands still.
func (s *Server) Stop() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.try("stop", s.proc.Stop)
}

// Continue ends Stop. The server then answers what it was sent meanwhile.
func (s *Server) Continue() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.try("continue", s.proc.Continue)
}

// Restart kills the server if it is running and starts it at the same address, with the data that it has
// persisted: all of it under WithAOF, else none.
func (s *Server) Restart() {
	s.tb.Helper()
	s.restart(false)
}

// RestartEmpty is Restart after a loss of the disk: the data files are removed before the server starts.
func (s *Server) RestartEmpty() {
	s.tb.Helper()
	s.restart(true)
}

func (s *Server) restart(empty bool) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
	if empty {
		if err := os.RemoveAll(s.dataDir()); err != nil {
			s.tb.Fatalf("cannot remove the data of redis-server at %s: %v", s.addr, err)
		}
	}
	if err := s.start(func() (string, error) { return s.addr, nil }); err != nil {
		s.tb.Fatalf("cannot restart redis-server at %s: %v", s.addr, err)
	}
}

// end is what the test's cleanup does.
func (s *Server) end() {
	if s.client != nil {
		_ = s.client.Close()
	}
	s.Kill()
}

func (s *Server) try(what string, do func() error) {
	s.tb.Helper()
	if err := do(); err != nil {
		s.tb.Fatalf("cannot %s redis-server at %s: %v", what, s.addr, err)
	}
}

func (s *Server) kill() {
	if s.proc != nil {
		s.proc.Kill()
	}
}

// startAnywhere starts the server at a free port, and makes the client for it.
func (s *Server) startAnywhere() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.start(freeAddr); err != nil {
		return err
	}
	s.client = s.newClient()
	return nil
}

// start starts the server at the address that where returns, which is asked again if the server exits there.
func (s *Server) start(where func() (string, error)) (err error) {
	for range attempts {
		if s.addr, err = where(); err != nil {
			return err
		}
		if err = s.launch(); err == nil {
			return nil
		}
		if !errors.Is(err, errExited) {
			break
		}
		time.Sleep(attemptPause)
	}
	return fmt.Errorf("%w; its log ends with:\n%s", err, s.logTail())
}

// launch starts a process and returns once it answers; it leaves none behind when it fails.
func (s *Server) launch() error {
	if err := os.MkdirAll(s.dataDir(), 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own
	_, port, _ := net.SplitHostPort(s.addr)
	cmd := exec.Command(s.binary, append([]string{
		"--bind", loopback, "--port", port, "--dir", s.dataDir(), "--save", "", "--appendonly", "no",
	}, s.args...)...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stdout, cmd.Stderr = log, log
	if s.proc, err = process.Start(cmd); err != nil {
		return err
	}
	if err := s.awaitReady(); err != nil {
		s.kill()
		return err
	}
	return nil
}

var errExited = errors.New("the server exited before it answered")

func (s *Server) awaitReady() error {
	client := s.newClient()
	defer func() { _ = client.Close() }()
	for deadline := time.Now().Add(readyTimeout); ; {
		err := s.probe(client)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server does not answer within %v: %w", readyTimeout, err)
		}
		select {
		case <-s.proc.Exited():
			return errExited
		case <-time.After(probeInterval):
		}
	}
}

// probe returns nil if the server answers and is ours: another process can have taken the port.
func (s *Server) probe(client *redis.Client) error {
	conn, err := net.DialTimeout("tcp", s.addr, clientTimeout) // the client would log each refusal
	if err != nil {
		return err
	}
	_ = conn.Close()
	if err := client.Ping(context.Background()).Err(); err != nil {
		return err // also while it loads its data
	}
	info, err := client.Info(context.Background(), "server").Result()
	if err != nil {
		return err
	}
	if !strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", s.proc.Pid())) {
		return errors.New("another server has the port")
	}
	return nil
}

func (s *Server) newClient() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:                     s.addr,
		Password:                 s.password(),
		DialTimeout:              clientTimeout,
		ReadTimeout:              clientTimeout,
		MaxRetries:               -1,
		DialerRetries:            1,
		DisableIdentity:          true,
		ContextTimeoutEnabled:    true,
		PoolSize:                 1000, // after as many failed dials the pool keeps a goroutine for a second
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

func (s *Server) password() string {
	if i := slices.Index(s.args, "--requirepass"); i >= 0 && i+1 < len(s.args) {
		return s.args[i+1]
	}
	return ""
}

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "redis.log") }

func (s *Server) logTail() string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-logTailBytes):])
}

const loopback = "127.0.0.1"

// freeAddr returns a loopback address with a port that was free a moment ago.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
