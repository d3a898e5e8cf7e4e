package redistest

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServersAreDistinct(t *testing.T) {
	addrs, runs := make(map[string]bool), make(map[string]bool)
	for _, s := range StartN(t, 3) {
		addrs[s.Addr()] = true
		runs[s.Client().InfoMap(t.Context(), "server").Item("Server", "run_id")] = true
	}
	if len(addrs) != 3 || len(runs) != 3 {
		t.Fatalf("three servers have addresses %v and run ids %v", addrs, runs)
	}
}

func TestRestart(t *testing.T) {
	for _, tt := range []struct {
		name    string
		opts    []Option
		before  func(*Server)
		restart func(*Server)
		want    string
	}{
		{"with data", []Option{WithAOF()}, (*Server).Kill, (*Server).Restart, "v"},
		{"of a running server", []Option{WithAOF()}, nil, (*Server).Restart, "v"},
		{"of a stopped server", []Option{WithAOF()}, (*Server).Stop, (*Server).Restart, "v"},
		{"without persistence", nil, (*Server).Kill, (*Server).Restart, ""},
		{"empty", []Option{WithAOF()}, (*Server).Kill, (*Server).RestartEmpty, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Start(t, tt.opts...)
			addr, pid := s.Addr(), s.Pid()
			set(t, s.Client(), "k")
			if tt.before != nil {
				tt.before(s)
			}
			tt.restart(s)
			if s.Addr() != addr || s.Pid() == pid {
				t.Errorf("the server moved from %s to %s, or is the same process %d", addr, s.Addr(), pid)
			}
			if got, err := s.Client().Get(t.Context(), "k").Result(); got != tt.want || err != nil && err != redis.Nil {
				t.Errorf("k = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestKill(t *testing.T) {
	s := Start(t)
	s.Stop()
	s.Stop()
	s.Kill()
	s.Kill()
	if conn, err := net.Dial("tcp", s.Addr()); err == nil {
		_ = conn.Close()
		t.Fatal("a killed server is there")
	}
}

func TestStopAndContinue(t *testing.T) {
	s := Start(t)
	c := client(t, s.Addr(), 10*time.Second)
	set(t, c, "k")
	s.Stop()
	reply := make(chan error, 1)
	go func() { reply <- c.Ping(t.Context()).Err() }()
	select {
	case err := <-reply:
		t.Fatalf("a stopped server answered: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	s.Continue()
	s.Continue()
	if err := <-reply; err != nil {
		t.Fatal(err)
	}
}

func TestPassword(t *testing.T) {
	s := Start(t, WithArgs("--requirepass", "secret"))
	set(t, s.Client(), "k")
	if err := client(t, s.Addr(), time.Second).Ping(t.Context()).Err(); err == nil {
		t.Fatal("the server asks for no password")
	}
}

func TestFailureQuotesTheLog(t *testing.T) {
	s := newServer(t, lookup(t), []Option{WithArgs("--no-such-option", "yes")})
	begin := time.Now()
	if err := s.startAnywhere(); err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Fatalf("the error does not quote the log: %v", err)
	}
	if took := time.Since(begin); took > readyTimeout/2 {
		t.Fatalf("that the server exits at once was found after %v", took)
	}
}

// A thread's death must not be taken for that of the test binary.
func TestServerOutlivesTheThreadThatStartsIt(t *testing.T) {
	var s *Server
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and no unlock: the thread ends with the goroutine
		s = Start(t)
	}()
	<-done
	time.Sleep(50 * time.Millisecond)
	set(t, s.Client(), "k")
}

func TestServerDiesWithTheTestBinary(t *testing.T) {
	const inChild = "REDISTEST_CHILD"
	if os.Getenv(inChild) != "" {
		_, _ = os.Stdout.WriteString("addr=" + Start(t).Addr() + "\n")
		time.Sleep(time.Minute) // killed long before
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can do that")
	}
	lookup(t)
	child := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithTheTestBinary$")
	child.Env = append(os.Environ(), inChild+"=1")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
		_, addr, _ = strings.Cut(lines.Text(), "addr=")
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if addr == "" {
		t.Fatal("the child process has started no server")
	}
	eventually(t, "the server is gone", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

// client returns one that tries nothing twice and waits for a reply as long as told.
func client(t *testing.T, addr string, timeout time.Duration) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: addr, ReadTimeout: timeout, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DisableIdentity: true, PoolSize: 100,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func set(t *testing.T, c *redis.Client, key string) {
	t.Helper()
	if err := c.Set(t.Context(), key, "v", 0).Err(); err != nil {
		t.Fatalf("set %s: %v", key, err)
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5s: %s", what)
		}
	}
}
