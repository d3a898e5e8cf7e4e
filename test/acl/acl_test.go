// Package acl tests with what rights on the server the library does its work: those of docs/acl.md.
package acl

import (
	"context"
	"errors"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/internal/redistest"
	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

const (
	namespace, name = "my-namespace", "my-controller" // as in the guide
	leaseKey        = "{my-namespace/my-controller}:lease"
	counterKey      = "{my-namespace/my-controller}:epoch"
	user            = "elector"
	retryPeriod     = 200 * time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// documented returns the rules of the user in docs/acl.md.
func documented(t *testing.T) []string { return rulesOf(t, 0) }

// verifying returns what the user needs in addition for Verify and RestartGuard.
func verifying(t *testing.T) []string { return rulesOf(t, 1) }

func rulesOf(t *testing.T, line int) []string {
	t.Helper()
	guide, err := os.ReadFile("../../docs/acl.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^ACL SETUSER `+user+` (.*)$`).FindAllSubmatch(guide, -1)
	if len(lines) != 2 {
		t.Fatalf("docs/acl.md shows %d times ACL SETUSER, want 2", len(lines))
	}
	return strings.Fields(string(lines[line][1]))
}

// server is a Redis whose default user is off.
type server struct {
	addr  string
	admin *redis.Client
}

func newServer(t *testing.T, rules []string, opts ...redistest.Option) *server {
	t.Helper()
	s := redistest.Start(t, opts...)
	ctx := t.Context()
	if err := s.Client().ACLSetUser(ctx, "admin", "on", ">admin", "allkeys", "allchannels", "allcommands").Err(); err != nil {
		t.Fatal(err)
	}
	admin := connect(t, s.Addr(), "admin", "admin")
	if err := admin.ACLSetUser(ctx, user, rules...).Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.ACLSetUser(ctx, "default", "off").Err(); err != nil {
		t.Fatal(err)
	}
	return &server{s.Addr(), admin}
}

func connect(t *testing.T, addr, user, password string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, Username: user, Password: password})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// manager returns one that works as the user.
func (s *server) manager(t *testing.T, cfg ...redlock.Config) *redlock.Manager {
	t.Helper()
	m, err := redlock.NewSingle(connect(t, s.addr, user, "PASSWORD"), cfg...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// refused returns what the server has refused the user.
func (s *server) refused(t *testing.T) []string {
	t.Helper()
	log, err := s.admin.ACLLog(t.Context(), 100).Result()
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	for _, e := range log {
		if e.Username == user && !strings.HasPrefix(e.Object, "client") { // introductions, which nobody needs
			refused = append(refused, e.Reason+" "+e.Object)
		}
	}
	return refused
}

func TestDefaultUserIsOff(t *testing.T) {
	s := newServer(t, documented(t))
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	defer c.Close()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Fatal("the default user can do something: these tests show nothing")
	}
}

func TestDocumentedUser(t *testing.T) {
	for name, use := range uses {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, documented(t))
			if err := use(t, s); err != nil {
				t.Error(err)
			}
			if refused := s.refused(t); len(refused) > 0 {
				t.Errorf("the user was refused %q", refused)
			}
		})
	}
}

// What is in the documented line is needed: without it something is refused.
func TestNoRuleTooMany(t *testing.T) {
	rules := documented(t)
	for i, rule := range rules {
		if !strings.ContainsAny(rule[:1], "+~&") || rule == "+ping" { // sent after a minute of silence
			continue
		}
		t.Run(strings.NewReplacer("/", " ", "~", "key ", "&", "channel ").Replace(rule), func(t *testing.T) {
			s := newServer(t, slices.Delete(slices.Clone(rules), i, i+1))
			_ = fenced(t, s)
			if len(s.refused(t)) == 0 {
				t.Error("nothing is refused without it")
			}
		})
	}
}

// Verify asks what the rules beside allow, and each of them is needed; that it may not ask is no fault.
func TestVerifyingUser(t *testing.T) {
	rules := verifying(t)
	verify := func(t *testing.T, rules []string) (refused []string) {
		s := newServer(t, append(documented(t), rules...), redistest.WithAOF(), inClusterMode(t))
		if err := s.manager(t).Verify(t.Context()); err != nil {
			t.Error(err)
		}
		return s.refused(t)
	}
	if refused := verify(t, rules); len(refused) > 0 {
		t.Errorf("the user was refused %q", refused)
	}
	for i, rule := range rules {
		if refused := verify(t, slices.Delete(slices.Clone(rules), i, i+1)); len(refused) == 0 {
			t.Errorf("nothing is refused without %s", rule)
		}
	}
}

func inClusterMode(t *testing.T) redistest.Option {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return redistest.WithArgs("--cluster-enabled", "yes", "--cluster-port", port)
}

// The RestartGuard needs one right more.
func TestGuardedUser(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	guarded := redlock.Config{Expiry: 200 * time.Millisecond, RestartGuard: true}
	s := newServer(t, append(documented(t), "+info"))
	if err := s.manager(t, guarded).NewLock(leaseKey, redlock.WithFencingToken(counterKey)).Lock(ctx); err != nil {
		t.Error(err)
	}
	if refused := s.refused(t); len(refused) > 0 {
		t.Errorf("the user was refused %q", refused)
	}
	s = newServer(t, documented(t))
	if err := s.manager(t, guarded).NewLock(leaseKey).TryLock(ctx); !errors.Is(err, redlock.ErrNotAcquired) || !strings.Contains(err.Error(), "RestartGuard") {
		t.Errorf("without +info the error is %v", err)
	}
}

// withoutChannels are the rules of a user that can neither tell of a release nor hear of one.
func withoutChannels(t *testing.T) []string {
	return slices.DeleteFunc(documented(t), func(r string) bool {
		return strings.HasPrefix(r, "&") || slices.Contains([]string{"+publish", "+subscribe", "+unsubscribe"}, r)
	})
}

// Without rights on channels a release works all the same; those who wait find out by themselves.
func TestReleaseWithoutChannels(t *testing.T) {
	s := newServer(t, withoutChannels(t))
	if err := fenced(t, s); err != nil {
		t.Error(err)
	}
	if n := s.admin.Exists(t.Context(), leaseKey).Val(); n != 0 {
		t.Error("the lease was not released")
	}
}

// An elector that hears of no release notices it within a RetryPeriod, and takes over when the TTL of a dead leader ends.
func TestElectionWithoutChannels(t *testing.T) {
	const slack = 150 * time.Millisecond
	s := newServer(t, withoutChannels(t))
	leads := make(chan string, 2)
	start := func(id string) (stop func()) {
		run, err := elector(s.manager(t), id, leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { leads <- id; <-ctx.Done() },
			OnStoppedLeading: func() {},
		})
		if err != nil {
			t.Fatal(err)
		}
		return goRun(t, run)
	}
	dead := s.manager(t).NewLock(leaseKey, redlock.WithFencingToken(counterKey), redlock.WithExpiry(time.Second))
	if err := dead.TryLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	stop := start("first")
	await(t, leads, "first")
	if d := time.Since(begin); d > time.Second+slack {
		t.Errorf("the takeover from a dead leader took %v, its TTL was 1s", d)
	}
	start("second")
	time.Sleep(500 * time.Millisecond)
	begin = time.Now()
	stop()
	await(t, leads, "second")
	if d := time.Since(begin); d > retryPeriod+slack {
		t.Errorf("the release was noticed after %v, RetryPeriod is %v", d, retryPeriod)
	}
}

var uses = map[string]func(*testing.T, *server) error{
	"redlock":      fenced,
	"resourcelock": electors,
	"election":     elections,
}

// fenced goes through the life of a fenced lease: acquired, seen, prolonged, waited for, released, acquired by who waited.
func fenced(t *testing.T, s *server) error {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	first := s.manager(t).NewLock(leaseKey, redlock.WithFencingToken(counterKey), redlock.WithExpiry(time.Minute))
	waiting := s.manager(t)
	second := waiting.NewLock(leaseKey, redlock.WithFencingToken(counterKey))
	if err := first.TryLock(ctx); err != nil {
		return err
	}
	if _, _, err := waiting.Holder(ctx, leaseKey); err != nil {
		return err
	}
	if err := first.Extend(ctx, time.Minute); err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() { waited <- second.Lock(ctx) }()
	for ctx.Err() == nil && s.waiters(ctx) == 0 && s.silent(t) {
		time.Sleep(time.Millisecond)
	}
	if err := first.Unlock(ctx); err != nil {
		cancel()
		<-waited
		return err
	}
	if err := <-waited; err != nil {
		return err
	}
	if second.FencingToken() != first.FencingToken()+1 {
		t.Errorf("token %d came after %d", second.FencingToken(), first.FencingToken())
	}
	return second.Unlock(ctx)
}

func (s *server) waiters(ctx context.Context) int {
	return len(s.admin.PubSubChannels(ctx, "*").Val())
}

// silent reports whether nothing has been refused so far: otherwise there may be no waiter to wait for.
func (s *server) silent(t *testing.T) bool { return len(s.refused(t)) == 0 }

// electors are two LeaderElectors of client-go, the second of which takes over from the first.
func electors(t *testing.T, s *server) error {
	return handOver(t, s, func(id string, cb leaderelection.LeaderCallbacks) (func(context.Context), error) {
		lock, err := resourcelock.New(resourcelock.Config{
			Manager: s.manager(t), Namespace: namespace, Name: name, Identity: id, FastHandover: true,
		})
		if err != nil {
			return nil, err
		}
		e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, Callbacks: cb, ReleaseOnCancel: true,
			LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: retryPeriod,
		})
		if err != nil {
			return nil, err
		}
		return e.Run, nil
	})
}

// elections are the same with electors of our own.
func elections(t *testing.T, s *server) error {
	return handOver(t, s, func(id string, cb leaderelection.LeaderCallbacks) (func(context.Context), error) {
		return elector(s.manager(t), id, cb)
	})
}

func elector(m *redlock.Manager, id string, cb leaderelection.LeaderCallbacks) (run func(context.Context), err error) {
	e, err := election.New(election.Config{
		Manager: m, Namespace: namespace, Name: name, Identity: id, Callbacks: cb, ReleaseOnCancel: true,
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: retryPeriod,
	})
	return func(ctx context.Context) { _ = e.Run(ctx) }, err
}

// goRun runs a candidate until stop, or until the test ends.
func goRun(t *testing.T, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// handOver has two candidates, of which the first leads and renews, and is then asked to end.
func handOver(t *testing.T, s *server, candidate func(string, leaderelection.LeaderCallbacks) (func(context.Context), error)) error {
	leads := make(chan string, 2)
	start := func(id string) (stop func(), err error) {
		run, err := candidate(id, leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { leads <- id; <-ctx.Done() },
			OnStoppedLeading: func() {},
		})
		if err != nil {
			return nil, err
		}
		return goRun(t, run), nil
	}

	stop, err := start("first")
	if err != nil {
		return err
	}
	await(t, leads, "first")
	if _, err := start("second"); err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Second); s.waiters(t.Context()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody listens for the release")
		}
	}
	time.Sleep(500 * time.Millisecond) // some renewals
	stop()
	await(t, leads, "second")
	return nil
}

func await(t *testing.T, leads <-chan string, want string) {
	t.Helper()
	select {
	case got := <-leads:
		if got != want {
			t.Fatalf("%q leads, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("%q does not lead", want)
	}
}
