package resourcelock_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/redlock"
	"github.com/ndyakov/go-redlock/resourcelock"
)

// recordOf is what an elector over lock asks for.
func recordOf(lock rl.Interface, d time.Duration) rl.LeaderElectionRecord {
	return rl.LeaderElectionRecord{
		HolderIdentity:       lock.Identity(),
		LeaseDurationSeconds: int(d / time.Second),
		AcquireTime:          metav1.Now(),
		RenewTime:            metav1.Now(),
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func offline(t *testing.T, n int) *redlock.Manager {
	t.Helper()
	var nodes []redlock.Node
	for range n {
		c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		t.Cleanup(func() { _ = c.Close() })
		nodes = append(nodes, c)
	}
	m, err := redlock.New(nodes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestBadConfigIsNamed(t *testing.T) {
	single, three := offline(t, 1), offline(t, 3)
	for _, c := range []struct {
		cfg   resourcelock.Config
		words []string
	}{
		{resourcelock.Config{Name: "n"}, []string{"Config.Manager", "nil"}},
		{resourcelock.Config{Manager: single}, []string{"Config.Name", `""`}},
		{resourcelock.Config{Manager: single, Name: "a}b"}, []string{"Config.Name", `"a}b"`}},
		{resourcelock.Config{Manager: single, Namespace: "x/y", Name: "n"}, []string{"Config.Namespace", `"x/y"`}},
		{resourcelock.Config{Manager: single, Name: "n", LeaseDuration: -time.Second}, []string{"Config.LeaseDuration", "-1s"}},
		{resourcelock.Config{Manager: single, Name: "n", LeaseDuration: 2 * time.Millisecond}, []string{"Config.LeaseDuration", "2ms", "drift"}},
		{resourcelock.Config{Manager: single, Name: "n", Identity: strings.Repeat("x", redlock.MaxMetadata)}, []string{"Config.Identity", "65536"}},
		{resourcelock.Config{Manager: three, Name: "n", FenceFloor: func(context.Context) (uint64, error) { return 0, nil }}, []string{"Config.FenceFloor", "Redlock"}},
	} {
		_, err := resourcelock.New(c.cfg)
		if err == nil {
			t.Fatalf("no error, want one that says %q", c.words)
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("error %q does not say %q", err, w)
			}
		}
	}
	l, err := resourcelock.New(resourcelock.Config{Manager: single, Namespace: "ns", Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(l.Identity(), "_") || l.Describe() != "ns/n" || l.NeedLeaderElection() || l.Epoch() != 0 {
		t.Errorf("identity %q, described as %q", l.Identity(), l.Describe())
	}
}

// recorder keeps the events.
type recorder struct{ events []string }

func (r *recorder) Eventf(obj runtime.Object, kind, reason, message string, args ...any) {
	r.events = append(r.events, fmt.Sprintf("%s %s %s %s", obj.GetObjectKind().GroupVersionKind(), kind, reason, fmt.Sprintf(message, args...)))
}

func TestEventsAreOnTheLeaseThatClientGoWouldUse(t *testing.T) {
	r := new(recorder)
	l, err := resourcelock.New(resourcelock.Config{Manager: offline(t, 1), Namespace: "ns", Name: "n", Identity: "me", EventRecorder: r})
	if err != nil {
		t.Fatal(err)
	}
	l.RecordEvent("became leader")
	want := "coordination.k8s.io/v1, Kind=Lease " + corev1.EventTypeNormal + " LeaderElection me became leader"
	if len(r.events) != 1 || r.events[0] != want {
		t.Fatalf("events %q, want %q", r.events, want)
	}
}
