package redlock_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ndyakov/go-redlock/internal/bubble"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestExtendDoesNotChangeTheLocksExpiry(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		l := w.party(t, redlock.Config{Expiry: 10 * time.Second}).NewLock("k", redlock.WithAutoRenew(3*time.Second))
		must(t, l.TryLock(t.Context()))
		synctest.Wait() // until it stands on the last server
		must(t, l.Extend(t.Context(), time.Hour))
		synctest.Wait()
		for i, s := range w {
			if s.TTL("k") != time.Hour {
				t.Errorf("server %d: %v after Extend", i, s.TTL("k"))
			}
		}
		if left := time.Until(l.ValidUntil()); left != time.Hour-36*time.Second-2*time.Millisecond {
			t.Errorf("valid for %v", left)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for i, s := range w {
			if s.TTL("k") != 10*time.Second {
				t.Errorf("server %d: %v after the next renewal", i, s.TTL("k"))
			}
		}
		if left := time.Until(l.ValidUntil()); left != 9898*time.Millisecond {
			t.Errorf("valid for %v after the next renewal", left)
		}
		must(t, l.Unlock(t.Context()))
		must(t, l.TryLock(t.Context()))
		if left := time.Until(l.ValidUntil()); left != 9898*time.Millisecond {
			t.Errorf("the next lease is valid for %v", left)
		}
	})
}

func TestSecondTryLockOnAHeldHandle(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		l := w.party(t, redlock.Config{}).NewLock("k")
		must(t, l.TryLock(t.Context()))
		until := l.ValidUntil()
		time.Sleep(time.Second)
		wantIs(t, l.TryLock(t.Context()), redlock.ErrAlreadyHeld)
		wantIs(t, l.Lock(t.Context()), redlock.ErrAlreadyHeld)
		if !l.Held() || isLost(l) || !l.ValidUntil().Equal(until) {
			t.Error("the lease did not stay as it was")
		}
	})
}

func TestExpiredHandleCanAcquireAgain(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		l := w.party(t, redlock.Config{Expiry: time.Second}).NewLock("k")
		first := l.Lost()
		must(t, l.TryLock(t.Context()))
		if l.Lost() != first {
			t.Error("the channel of a new handle is not its first lease's")
		}
		time.Sleep(2 * time.Second)
		must(t, l.TryLock(t.Context()))
		select {
		case <-first:
		default:
			t.Error("the old Lost is open")
		}
		if isLost(l) || !l.Held() {
			t.Error("the new lease is lost")
		}
		must(t, l.Unlock(t.Context()))
		if isLost(l) {
			t.Error("a clean release closed Lost")
		}
	})
}

func TestUnheldHandle(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		l := w.party(t, redlock.Config{}).NewLock("k")
		check := func() {
			t.Helper()
			wantIs(t, l.Unlock(t.Context()), redlock.ErrNotHeld)
			wantIs(t, l.Extend(t.Context(), time.Minute), redlock.ErrNotHeld)
			ctx, cancel := l.Context(t.Context())
			defer cancel()
			if l.Held() || isLost(l) || !l.ValidUntil().IsZero() || !errors.Is(context.Cause(ctx), redlock.ErrNotHeld) {
				t.Errorf("held %v, lost %v, valid until %v, cause %v", l.Held(), isLost(l), l.ValidUntil(), context.Cause(ctx))
			}
		}
		check()
		must(t, l.TryLock(t.Context()))
		must(t, l.Unlock(t.Context()))
		check()
	})
}

func TestErrorsWorkWithIsAndAs(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		a, b := w.party(t, redlock.Config{Expiry: time.Second}).NewLock("k"), w.party(t, redlock.Config{Attempts: 1}).NewLock("k")
		must(t, a.TryLock(t.Context()))
		synctest.Wait()
		err := b.TryLock(t.Context())
		wantIs(t, err, redlock.ErrNotAcquired)
		q := quorumError(t, err)
		if q.Operation != "acquire" || q.Succeeded != 0 || q.Required != len(w)/2+1 || len(q.NodeErrors) != 0 {
			t.Errorf("error is %#v", q)
		}
		for _, s := range w {
			s.Del("k")
		}
		err = a.Extend(t.Context(), time.Minute)
		wantIs(t, err, redlock.ErrLockLost)
		if q := quorumError(t, err); q.Operation != "extend" || errors.Is(err, redlock.ErrNotAcquired) {
			t.Errorf("error is %#v", q)
		}
		wantIs(t, a.Extend(t.Context(), time.Minute), redlock.ErrLockLost)
		wantIs(t, a.Unlock(t.Context()), redlock.ErrLockLost)
		wantIs(t, a.Unlock(t.Context()), redlock.ErrNotHeld)
	})
}

// A SET to one node is still under way, and undone, when the others have said that somebody else holds the lease.
func TestContentionIsNoFaultOfANode(t *testing.T) {
	virtual(t, 3, func(t *testing.T, w world) {
		must(t, w.party(t, redlock.Config{}).NewLock("k").TryLock(t.Context()))
		p := w.party(t, redlock.Config{Attempts: 1})
		warm := p.NewLock("warm")
		must(t, warm.TryLock(t.Context()))
		synctest.Wait()
		must(t, warm.Unlock(t.Context()))
		for _, l := range p.links[:2] {
			l.Delay(bubble.Both, 10*time.Millisecond)
		}
		p.links[2].Delay(bubble.ToServer, 400*time.Millisecond)
		async(t, func() {
			time.Sleep(5 * time.Millisecond)
			p.links[2].Delay(bubble.ToServer, 0) // the release overtakes the SET
		})
		q := quorumError(t, p.NewLock("k").TryLock(t.Context()))
		if len(q.NodeErrors) > 0 {
			t.Errorf("error is %v", q)
		}
	})
}

func TestTryLockTriesAsOftenAsConfigured(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		must(t, w.party(t, redlock.Config{}).NewLock("k").TryLock(t.Context()))
		l := w.party(t, redlock.Config{Attempts: 5, RetryDelay: time.Second}).NewLock("k")
		begin := time.Now()
		wantIs(t, l.TryLock(t.Context()), redlock.ErrNotAcquired)
		if d := time.Since(begin); d < 4*time.Second || d > 6*time.Second {
			t.Errorf("five attempts took %v", d)
		}
	})
}

// In virtual time: whoever waited for the goroutine that is in its back-off would wait for ever, or measurably.
func TestHandleAnswersAtOnceWhileTryLockWaits(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		must(t, w.party(t, redlock.Config{}).NewLock("k").TryLock(t.Context()))
		p := w.party(t, redlock.Config{RetryDelay: time.Second})
		p.each(func(l *bubble.Link) { l.Delay(bubble.Both, 50*time.Millisecond) })
		l := p.NewLock("k")
		tried := make(chan error, 1)
		async(t, func() { tried <- l.TryLock(t.Context()) })
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 25 * time.Millisecond)
				begin := time.Now()
				if l.Held() || isLost(l) || l.FencingToken() != 0 || !l.ValidUntil().IsZero() {
					t.Error("a handle that holds nothing says otherwise")
				}
				if d := time.Since(begin); d > 0 {
					t.Errorf("the answers took %v", d)
				}
			})
		}
		all.Wait()
		wantIs(t, <-tried, redlock.ErrNotAcquired)
	})
}

// For the race detector: everything at once on one handle.
func TestHandleUsedByAHundredGoroutines(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		l := w.party(t, redlock.Config{Expiry: 200 * time.Millisecond, RetryDelay: time.Millisecond}).NewLock("k", redlock.WithAutoRenew(20*time.Millisecond))
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		uses := []func(){
			func() { _ = l.TryLock(ctx) }, func() { _ = l.Unlock(ctx) }, func() { _ = l.Extend(ctx, time.Second) },
			func() { l.Held() }, func() { l.ValidUntil() }, func() { l.FencingToken() }, func() { isLost(l) },
			func() { _, cancel := l.Context(ctx); cancel() }, func() { l.Held() }, func() { w[0].Del("k") },
		}
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				for ctx.Err() == nil {
					uses[i%len(uses)]()
					time.Sleep(time.Duration(10+i) * time.Millisecond)
				}
			})
		}
		all.Wait()
		_ = l.Unlock(context.Background())
		time.Sleep(2 * time.Second)
		w.wantFree(t, "k")
	})
}

func TestCloseEndsWaitersAndRenewals(t *testing.T) {
	virtually(t, func(t *testing.T, w world) {
		us, them := w.party(t, redlock.Config{Expiry: 10 * time.Second}), w.party(t, redlock.Config{})
		must(t, them.NewLock("taken").TryLock(t.Context()))
		l := us.NewLock("k", redlock.WithAutoRenew(time.Second))
		must(t, l.TryLock(t.Context()))
		waited := make(chan error, 1)
		async(t, func() { waited <- us.NewLock("taken").Lock(t.Context()) })
		time.Sleep(2500 * time.Millisecond)
		must(t, us.Close())
		must(t, us.Close())
		wantIs(t, <-waited, redlock.ErrClosed)
		// The lease is left to expire, and its loss told in time.
		if !l.Held() {
			t.Error("Close ended a lease")
		}
		<-l.Lost()
		if w.holding("k") == 0 {
			t.Error("told too late")
		}
		for _, err := range []error{l.TryLock(t.Context()), l.Lock(t.Context()), l.Extend(t.Context(), time.Second), l.Unlock(t.Context())} {
			wantIs(t, err, redlock.ErrClosed)
		}
		time.Sleep(10 * time.Second)
		w.wantFree(t, "k")
	})
}

func TestCloseIsBounded(t *testing.T) {
	for name, sever := range severed {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, w world) {
				p := w.party(t, redlock.Config{OperationTimeout: 300 * time.Millisecond, Attempts: 1})
				must(t, p.NewLock("a").TryLock(t.Context()))
				p.each(sever)
				_ = p.NewLock("b").TryLock(t.Context()) // leaves something to settle
				begin := time.Now()
				_ = p.Close()
				if d := time.Since(begin); d > 600*time.Millisecond {
					t.Errorf("Close took %v", d)
				}
				p.each(mend)
			})
		})
	}
}

// monitor returns what a server executes, line by line, until the test ends.
func monitor(t *testing.T, addr string) <-chan string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	lines := make(chan string, 1000)
	in := bufio.NewReader(conn)
	_, err = conn.Write([]byte("MONITOR\r\n"))
	must(t, err)
	ok, err := in.ReadString('\n')
	must(t, err)
	if ok != "+OK\r\n" {
		t.Fatal(ok)
	}
	async(t, func() {
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			lines <- line
		}
	})
	t.Cleanup(func() { _ = conn.Close() }) // runs before the wait for the goroutine
	return lines
}

func next(t *testing.T, lines <-chan string, with string) string {
	t.Helper()
	for {
		select {
		case line := <-lines:
			if strings.Contains(line, with) {
				return line
			}
		case <-time.After(2 * time.Second):
			t.Fatalf("nothing with %q was executed", with)
		}
	}
}

// What other Redlock clients write, and refuse to overwrite.
func TestBareLeaseOnTheWireAndInStore(t *testing.T) {
	really(t, func(t *testing.T, s *site) {
		key := redistest.Key(t)
		var lines []<-chan string
		for _, srv := range s.servers {
			lines = append(lines, monitor(t, srv.Addr()))
		}
		l := s.manager(t, redlock.Config{Expiry: 12345 * time.Millisecond}).NewLock(key)
		must(t, l.TryLock(t.Context()))
		tokens := map[string]bool{}
		want := regexp.MustCompile(`(?i)^\+[0-9.]+ \[0 [0-9.:]+\] "SET" "` + regexp.QuoteMeta(key) + `" "([0-9a-f]{40})" "NX" "PX" "12345"\r\n$`)
		for i := range lines {
			line := next(t, lines[i], key)
			m := want.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("server %d executed %s", i, line)
			}
			tokens[m[1]] = true
			eventually(t, time.Second, "the value is the token", func() bool { return s.at(t, i, key) == m[1] })
		}
		if len(tokens) != 1 {
			t.Errorf("%d tokens for one attempt", len(tokens))
		}
		// Another client's lock excludes ours.
		must(t, l.Unlock(t.Context()))
		s.wantFree(t, key, time.Second)
		for _, srv := range s.servers {
			must(t, srv.Client().SetNX(t.Context(), key, "another client's value", time.Minute).Err())
		}
		wantIs(t, l.TryLock(t.Context()), redlock.ErrNotAcquired)
		for i := range s.servers {
			if v := s.at(t, i, key); v != "another client's value" {
				t.Errorf("server %d: the other's value became %q", i, v)
			}
		}
	})
}

func TestFencedAcquisitionIsOneScript(t *testing.T) {
	s := newSite(t, 1)
	key, counter := redistest.Key(t), redistest.Key(t)
	l := s.manager(t, redlock.Config{}).NewLock(key, redlock.WithFencingToken(counter), redlock.WithMetadata("me: myself"))
	must(t, l.TryLock(t.Context())) // the server learns the script
	must(t, l.Unlock(t.Context()))
	lines := monitor(t, s.servers[0].Addr())
	must(t, l.TryLock(t.Context()))
	must(t, s.servers[0].Client().Echo(t.Context(), "the end").Err())
	scripts := 0
	for line := ""; !strings.Contains(line, "the end"); {
		line = <-lines
		switch {
		case !strings.Contains(line, key) && !strings.Contains(line, counter), strings.Contains(line, " lua] "):
		case strings.Contains(strings.ToUpper(line), `"EVALSHA"`):
			scripts++
		default:
			t.Errorf("executed: %s", line)
		}
	}
	if scripts != 1 {
		t.Errorf("%d scripts", scripts)
	}
	if v := s.at(t, 0, key); !regexp.MustCompile(`^[0-9a-f]{40}:2:me: myself$`).MatchString(v) {
		t.Errorf("the value is %q", v)
	}
}
