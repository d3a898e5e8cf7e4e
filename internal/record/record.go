// Package record says how an election is laid out in Redis: the keys, and the record
// that a lease carries as its metadata. resourcelock and election write the same, so
// that candidates of both kinds contend for one lease.
package record

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/redlock"
)

// Keys are the Redis keys of one election. They share a hash tag, {namespace/name}, and
// so a slot of a Redis Cluster.
type Keys struct {
	Lease string // {namespace/name}:lease
	Epoch string // {namespace/name}:epoch, the counter; never deleted
}

// NewKeys returns the keys of the election namespace/name. The namespace may be empty.
func NewKeys(namespace, name string) (Keys, error) {
	if name == "" {
		return Keys{}, fmt.Errorf(`Name is "": the lease needs a name`)
	}
	if strings.ContainsAny(namespace, "{}/") {
		return Keys{}, fmt.Errorf("Namespace is %q: it must not contain { } or /", namespace)
	}
	if strings.ContainsAny(name, "{}") {
		return Keys{}, fmt.Errorf("Name is %q: it must not contain { or }", name)
	}
	tag := "{" + namespace + "/" + name + "}"
	return Keys{Lease: tag + ":lease", Epoch: tag + ":epoch"}, nil
}

// stored is client-go's LeaderElectionRecord without what Redis knows better: RenewTime follows
// from the TTL.
type stored struct {
	HolderIdentity       string                      `json:"holderIdentity"`
	LeaseDurationSeconds int                         `json:"leaseDurationSeconds"`
	AcquireTime          metav1.Time                 `json:"acquireTime"`
	LeaderTransitions    int                         `json:"leaderTransitions"`
	Strategy             v1.CoordinatedLeaseStrategy `json:"strategy,omitempty"`
	PreferredHolder      string                      `json:"preferredHolder,omitempty"`
}

// Encode returns the metadata of a lease whose leader is described by r.
func Encode(r rl.LeaderElectionRecord) string {
	b, err := json.Marshal(stored{
		HolderIdentity:       r.HolderIdentity,
		LeaseDurationSeconds: r.LeaseDurationSeconds,
		AcquireTime:          r.AcquireTime,
		LeaderTransitions:    r.LeaderTransitions,
		Strategy:             r.Strategy,
		PreferredHolder:      r.PreferredHolder,
	})
	if err != nil {
		panic(err) // strings, a number and a time: there is nothing that could fail
	}
	return string(b)
}

// Decode returns the record of a lease that h holds, leaseDuration being its full TTL as far as the reader
// knows. With an epoch, LeaderTransitions is the epoch less one. RenewTime is when the lease was last
// renewed, to judge by the TTL that is left.
//
// A lease that somebody took without a record is led by an unknown identity, never by nobody.
func Decode(h redlock.Holder, leaseDuration time.Duration) *rl.LeaderElectionRecord {
	var s stored
	if err := json.Unmarshal([]byte(h.Metadata), &s); err != nil || s.HolderIdentity == "" {
		s = stored{HolderIdentity: UnknownHolder, LeaseDurationSeconds: int(leaseDuration.Seconds())}
	}
	r := &rl.LeaderElectionRecord{
		HolderIdentity:       s.HolderIdentity,
		LeaseDurationSeconds: s.LeaseDurationSeconds,
		AcquireTime:          s.AcquireTime,
		LeaderTransitions:    s.LeaderTransitions,
		Strategy:             s.Strategy,
		PreferredHolder:      s.PreferredHolder,
		RenewTime:            metav1.NewTime(time.Now().Add(h.TTL - leaseDuration)),
	}
	if h.FencingToken > 0 {
		r.LeaderTransitions = int(h.FencingToken - 1)
	}
	return r
}

// UnknownHolder is the identity of a holder that left no record, such as a plain redlock.Lock on the same key.
const UnknownHolder = "unknown"
