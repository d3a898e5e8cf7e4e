package record_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

func TestKeysShareAHashTag(t *testing.T) {
	for _, c := range []struct{ namespace, name, lease, epoch string }{
		{"ns", "name", "{ns/name}:lease", "{ns/name}:epoch"},
		{"", "name", "{/name}:lease", "{/name}:epoch"},
		{"ns", "a/b", "{ns/a/b}:lease", "{ns/a/b}:epoch"},
	} {
		k, err := record.NewKeys(c.namespace, c.name)
		if err != nil || k.Lease != c.lease || k.Epoch != c.epoch {
			t.Errorf("keys of %q, %q are %+v: %v", c.namespace, c.name, k, err)
		}
	}
	for _, c := range []struct{ namespace, name, says string }{
		{"ns", "", `Name is ""`},
		{"ns", "a{b", `Name is "a{b"`},
		{"a/b", "name", `Namespace is "a/b"`},
		{"a}", "name", `Namespace is "a}"`},
	} {
		if _, err := record.NewKeys(c.namespace, c.name); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("keys of %q, %q: error %v, want one that says %s", c.namespace, c.name, err, c.says)
		}
	}
}

// What client-go writes comes back as it was, but for RenewTime, which Redis knows better.
func TestRoundTrip(t *testing.T) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	in := rl.LeaderElectionRecord{
		HolderIdentity: "pod-1", LeaseDurationSeconds: 15, AcquireTime: now, RenewTime: now, LeaderTransitions: 3,
		Strategy: "OldestEmulationVersion", PreferredHolder: "pod-2",
	}
	metadata := record.Encode(in)
	if strings.Contains(metadata, "renewTime") {
		t.Errorf("a RenewTime is stored: %s", metadata)
	}
	out := *record.Decode(redlock.Holder{Metadata: metadata, TTL: 10 * time.Second}, 15*time.Second)
	if age := time.Since(out.RenewTime.Time); age < 4*time.Second || age > 6*time.Second {
		t.Errorf("renewed %v ago, want 5s: that much of the TTL is over", age)
	}
	if !out.AcquireTime.Equal(&in.AcquireTime) {
		t.Errorf("acquired at %v, want %v", out.AcquireTime, in.AcquireTime)
	}
	out.RenewTime, out.AcquireTime = in.RenewTime, in.AcquireTime
	if out != in {
		t.Errorf("got %+v, want %+v", out, in)
	}
}

func TestTransitionsFollowTheEpoch(t *testing.T) {
	metadata := record.Encode(rl.LeaderElectionRecord{HolderIdentity: "pod-1", LeaderTransitions: 3})
	if r := record.Decode(redlock.Holder{Metadata: metadata, FencingToken: 42}, time.Second); r.LeaderTransitions != 41 {
		t.Errorf("%d transitions, want 41", r.LeaderTransitions)
	}
}

// A lease without a record is led by somebody.
func TestNoRecord(t *testing.T) {
	for _, metadata := range []string{"", "no JSON", `{"holderIdentity":""}`} {
		r := record.Decode(redlock.Holder{Metadata: metadata}, 15*time.Second)
		if r.HolderIdentity != record.UnknownHolder || r.LeaseDurationSeconds != 15 {
			t.Errorf("%q is the record %+v", metadata, r)
		}
	}
}
