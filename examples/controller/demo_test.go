package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
)

// tell runs the demo to its end, which must be a good one.
func tell(t *testing.T, args ...string) *program {
	t.Helper()
	p := start(t, args...)
	if code := p.exitCode(time.Minute); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	return p
}

// checkStory finds the facts in their order. It returns who led.
func checkStory(t *testing.T, p *program, epochs [3]string) {
	t.Helper()
	var leaders [3]string
	at := 0
	next := func(pattern string) []string {
		t.Helper()
		m, end := p.await(at, pattern)
		at = end
		return m
	}
	for i, what := range []string{``, `, \S+ after the signal, \S+ after the end of (\S+)'s work`, `, (\S+) after the kill`} {
		leaders[i] = next(`(replica-\d) leads under epoch ` + epochs[i] + what + `\.`)[1]
		switch i {
		case 0:
			next(leaders[0] + ` is asked to stop \(SIGTERM\)`)
		case 1:
			next(leaders[1] + ` is killed \(SIGKILL\)`)
			next(`Its lease has \S+ left`)
		}
	}
	if leaders[0] == leaders[1] || leaders[1] == leaders[2] || leaders[2] == leaders[0] {
		t.Errorf("the leaders were %q", leaders)
	}
	if epochs == oneTwoThree {
		next(`A write of ` + leaders[0] + ` arrives late, still under epoch 1\.`)
		next(`The store refuses it: it has seen epoch 3\.`)
	} else {
		next(`Left out: the write under an old epoch\.`)
	}
	next(`All of it happened as it should`)
	if n := len(p.pids()); n != 3 {
		t.Errorf("%d replicas", n)
	}
}

var (
	oneTwoThree = [3]string{"1", "2", "3"}
	growing     = [3]string{`\d+`, `\d+`, `\d+`} // as the demo itself checks
)

func TestStoryOnTheEmbeddedRedis(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", "of another Redis")
	t.Setenv("KUBECONFIG", "/a/cluster/that/is/none/of/our/business")
	checkStory(t, tell(t), oneTwoThree)
}

func TestStoryOnOneServer(t *testing.T) {
	addr := redistest.Single(t)
	p := tell(t, "--redis", addr)
	checkStory(t, p, oneTwoThree)
	checkNoKeys(t, p, addr)
}

func TestStoryOnThreeServers(t *testing.T) {
	addrs := redistest.Redlock(t)
	p := tell(t, "--redis", strings.Join(addrs, ","))
	checkStory(t, p, growing)
	checkNoKeys(t, p, addrs...)
}

func TestStoryOnAServerWithAPassword(t *testing.T) {
	s := redistest.Start(t, redistest.WithArgs("--requirepass", "secret"))
	t.Setenv("REDIS_PASSWORD", "secret")
	p := tell(t, "--redis", s.Addr(), "--verbose", "--lease-duration", "1500ms", "--renew-deadline", "1s", "--retry-period", "200ms")
	checkStory(t, p, oneTwoThree)
	for _, want := range []string{"[replica-1] ", "[replica-2] ", "[replica-3] ", "Acquired the lease"} {
		if !strings.Contains(p.output(), want) {
			t.Errorf("--verbose shows no %q", want)
		}
	}
	if strings.Contains(p.output(), "secret") {
		t.Error("the password was printed")
	}
}

// checkNoKeys reports what the run has left on the servers.
func checkNoKeys(t *testing.T, p *program, addrs ...string) {
	t.Helper()
	lease, _ := p.await(0, `The lease is (\S+),`)
	for _, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr})
		keys, err := c.Keys(context.Background(), "*"+lease[1]+"*").Result()
		if len(keys) != 0 || err != nil {
			t.Errorf("the demo left %q at %s (%v)", keys, addr, err)
		}
		_ = c.Close()
	}
}

func TestRedisThatRefusesIsToldAtOnce(t *testing.T) {
	began := time.Now()
	p := start(t, "--redis", "127.0.0.1:1")
	if code := p.exitCode(15 * time.Second); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !strings.Contains(p.output(), "controller: no Redis answers at 127.0.0.1:1: ") || strings.Count(p.output(), "\n") != 1 {
		t.Errorf("printed %q", p.output())
	}
	t.Logf("told after %v", time.Since(began))
}

func TestTwoServersAreRefused(t *testing.T) {
	p := start(t, "--redis", "127.0.0.1:1,127.0.0.1:2")
	if code := p.exitCode(patience); code != 1 || !strings.Contains(p.output(), "odd number") {
		t.Errorf("exit code %d, printed %q", code, p.output())
	}
}

// What does not happen is told, with the step: here nobody can go on leading.
func TestStoryFailsWhenRedisDies(t *testing.T) {
	s := redistest.Start(t)
	p := start(t, "--redis", s.Addr())
	p.await(0, `leads under epoch 2`)
	s.Kill()
	if code := p.exitCode(time.Minute); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if !regexp.MustCompile(`controller: step \d: `).MatchString(p.output()) || strings.Contains(p.output(), "as it should") {
		t.Error("it is not told what failed")
	}
}

func TestInterruptedDemoLeavesNothing(t *testing.T) {
	addr := redistest.Single(t)
	p := start(t, "--redis", addr)
	p.await(0, `leads under epoch 1`)
	p.signal(syscall.SIGINT)
	if code := p.exitCode(patience); code != 1 || !strings.Contains(p.output(), "controller: interrupted\n") {
		t.Errorf("exit code %d", code)
	}
	checkNoKeys(t, p, addr)
}

// Not even SIGKILL, which no code of the demo survives, leaves a replica behind.
func TestNoReplicaOutlivesAKilledDemo(t *testing.T) {
	p := start(t, "--redis", redistest.Single(t))
	p.await(0, `leads under epoch 1`)
	p.signal(syscall.SIGKILL)
	<-p.exited
	if len(p.pids()) != 3 {
		t.Fatalf("replicas %v", p.pids())
	}
	p.checkNobodyIsLeft()
}

// With --once=false one can kill and pause the leader by hand, and watch.
func TestWatchedReplicasStartAgain(t *testing.T) {
	addr := redistest.Single(t)
	p := start(t, "--once=false", "--redis", addr)
	lead := func(at int, epoch int) (name string, pid, end int) {
		t.Helper()
		m, end := p.await(at, fmt.Sprintf(`(replica-\d) leads under epoch %d \(kill -KILL (\d+)\)`, epoch))
		pid, _ = strconv.Atoi(m[2])
		return m[1], pid, end
	}
	killed, pid, at := lead(0, 1)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, at = p.await(at, killed+` ended: signal: killed; it starts again`)

	paused, pid, at := lead(at, 2)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, _, at = lead(at, 3)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.await(at, paused+` ended: exit status 1; it starts again`)

	p.signal(syscall.SIGTERM)
	if code := p.exitCode(patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	checkNoKeys(t, p, addr)
}
