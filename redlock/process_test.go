//go:build unix

package redlock_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

// childEnv holds, in a child of this test binary, what it is to do: "server key counter resource".
const childEnv = "REDLOCK_TEST_CHILD"

const childTTL = 400 * time.Millisecond

// fencedWrite stores a value with its token, unless a higher token was seen: the protected resource.
var fencedWrite = redis.NewScript(`
	if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then return 0 end
	redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
	return 1`)

func write(c *redis.Client, resource string, fence uint64, value string) bool {
	ok, err := fencedWrite.Run(context.Background(), c, []string{resource}, fence, value).Int()
	return err == nil && ok == 1
}

// becomeChild does the child's part, and does not return, where this process is one.
func becomeChild() {
	job := os.Getenv(childEnv)
	if job == "" {
		return
	}
	var addr, key, counter, resource string
	if _, err := fmt.Sscan(job, &addr, &key, &counter, &resource); err != nil {
		panic(err)
	}
	c := redis.NewClient(&redis.Options{Addr: addr})
	m, err := redlock.NewSingle(c, redlock.Config{Expiry: childTTL})
	if err != nil {
		panic(err)
	}
	l := m.NewLock(key, redlock.WithFencingToken(counter), redlock.WithAutoRenew(childTTL/4))
	if err := l.TryLock(context.Background()); err != nil {
		panic(err)
	}
	orders := bufio.NewScanner(os.Stdin)
	for look := "held"; ; look = orders.Text() {
		held := l.Held() // the first thing that it does when it goes on
		wrote := write(c, resource, l.FencingToken(), "child")
		fmt.Println(look, held, wrote, l.FencingToken(), isLost(l))
		if !orders.Scan() {
			os.Exit(0)
		}
	}
}

type childProcess struct {
	*exec.Cmd
	orders interface{ Write([]byte) (int, error) }
	says   *bufio.Scanner
}

func startChild(t *testing.T, job ...any) *childProcess {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	c := &childProcess{Cmd: exec.Command(self)}
	c.Env = append(os.Environ(), childEnv+"="+fmt.Sprintln(job...))
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	must(t, err)
	out, err := c.StdoutPipe()
	must(t, err)
	c.orders, c.says = in, bufio.NewScanner(out)
	must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c
}

// hear returns the child's answer to an order.
func (c *childProcess) hear(t *testing.T) (look string, held, wrote bool, fence uint64, lost bool) {
	t.Helper()
	if !c.says.Scan() {
		t.Fatal("the child is gone")
	}
	if _, err := fmt.Sscan(c.says.Text(), &look, &held, &wrote, &fence, &lost); err != nil {
		t.Fatal(err)
	}
	return look, held, wrote, fence, lost
}

func TestStoppedProcessSeesTheTruthAtItsFirstLook(t *testing.T) {
	srv := dial(t, redistest.Single(t))
	key, counter, resource := redistest.Key(t), redistest.Key(t), redistest.Key(t)
	// Given a process that holds a lease, renews it, and writes,
	child := startChild(t, srv.Options().Addr, key, counter, resource)
	_, held, wrote, old, _ := child.hear(t)
	if !held || !wrote || old != 1 {
		t.Fatalf("held %v, wrote %v, token %d", held, wrote, old)
	}
	time.Sleep(2 * childTTL)
	_, err := child.orders.Write([]byte("renewed\n"))
	must(t, err)
	if _, held, wrote, _, lost := child.hear(t); !held || !wrote || lost {
		t.Fatalf("it is not renewed: held %v, wrote %v, lost %v", held, wrote, lost)
	}
	// when it is stopped for two TTLs, in which somebody else acquires and writes,
	must(t, child.Process.Signal(syscall.SIGSTOP))
	l := manager(t, []redlock.Node{srv}, redlock.Config{}).NewLock(key, redlock.WithFencingToken(counter))
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	must(t, l.Lock(ctx))
	if !write(srv, resource, l.FencingToken(), "parent") || l.FencingToken() <= old {
		t.Fatalf("the successor's write, under token %d, is refused", l.FencingToken())
	}
	time.Sleep(2*childTTL - time.Since(begin))
	_, err = child.orders.Write([]byte("continued\n"))
	must(t, err)
	must(t, child.Process.Signal(syscall.SIGCONT))
	// then its first look says so, and its write is refused,
	look, held, wrote, fence, lost := child.hear(t)
	if look != "continued" || held || wrote || fence != old || !lost {
		t.Errorf("%s: held %v, wrote %v under token %d, lost %v", look, held, wrote, fence, lost)
	}
	if v := srv.HGet(t.Context(), resource, "value").Val(); v != "parent" {
		t.Errorf("the resource holds what the %s wrote", v)
	}
	// and the successor's lease is left alone.
	time.Sleep(childTTL)
	if !l.Held() {
		t.Error("the successor lost the lease")
	}
	must(t, l.Unlock(t.Context()))
}
