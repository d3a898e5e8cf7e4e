package resourcelock

import (
	"context"
	"encoding/json"
	"math"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	rl "k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

// sighting is an answer of Get.
type sighting struct {
	record rl.LeaderElectionRecord
	raw    []byte
	epoch  uint64
	expiry time.Time
	ours   bool
}

// sameTerm reports whether both show the same acquisition, held by somebody else.
func (s *sighting) sameTerm(o *sighting) bool {
	return s != nil && o != nil && !s.ours && !o.ours && s.record.HolderIdentity != "" &&
		s.record.HolderIdentity == o.record.HolderIdentity && s.epoch == o.epoch &&
		s.record.AcquireTime.Equal(&o.record.AcquireTime)
}

// Get returns the record of whoever holds the lease, or one without a holder when it is free. It is NotFound only
// where no term was ever held. Trouble with Redis is any other error.
//
// The raw bytes are the same between two writes, and others after every renewal and every change of hands.
func (l *Lock) Get(ctx context.Context) (*rl.LeaderElectionRecord, []byte, error) {
	s, err := l.look(ctx)
	if err == nil && l.cfg.FastHandover {
		s, err = l.waitForChange(ctx, s)
	}
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	l.seen = s
	l.mu.Unlock()
	r := s.record
	return &r, s.raw, nil
}

// waitForChange returns s, unless it shows a leader that the caller knows: then what comes after that one. It
// sends nothing while that leader renews. When ctx ends, s is still the truth as far as it is known.
func (l *Lock) waitForChange(ctx context.Context, s *sighting) (*sighting, error) {
	l.mu.Lock()
	known := l.seen
	l.mu.Unlock()
	if !known.sameTerm(s) {
		return s, nil
	}
	w := l.cfg.Manager.Watch(l.keys.Lease)
	defer w.Close()
	for {
		next, err := l.look(ctx) // watched: from here on no release is missed
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		if err == nil && !known.sameTerm(next) {
			return next, nil
		}
		if err == nil {
			s = next
			err = w.Wait(ctx, time.Until(s.expiry))
		}
		if ctx.Err() != nil {
			return s, nil
		}
		if err != nil {
			return nil, l.wrap("waiting for", err)
		}
	}
}

// look reads the lease.
func (l *Lock) look(ctx context.Context) (*sighting, error) {
	ours := l.current()
	h, held, err := l.cfg.Manager.Holder(ctx, l.keys.Lease)
	if err != nil {
		return nil, l.wrap("reading", err)
	}
	if held {
		return l.sight(h, ours), nil
	}
	return l.free(ctx)
}

// sight makes an answer of a holder. A lease is ours if we hold it, not if it bears our name: a record
// left by an earlier process with the same identity is somebody else's.
func (l *Lock) sight(h redlock.Holder, t *term) *sighting {
	ttl := l.cfg.LeaseDuration
	r := record.Decode(h, ttl)
	if ttl == 0 {
		ttl = time.Duration(r.LeaseDurationSeconds) * time.Second
	}
	s := &sighting{epoch: h.FencingToken, expiry: time.Now().Add(h.TTL)}
	s.ours = r.HolderIdentity == l.cfg.Identity && t.ours() && t.lock.FencingToken() == h.FencingToken
	if !s.ours && r.HolderIdentity == l.cfg.Identity {
		r.HolderIdentity += " (another process)"
	}

	if r.LeaseDurationSeconds <= 0 { // a holder without a record; with 0 client-go would try to take it over all the time
		r.LeaseDurationSeconds = int(math.Ceil(h.TTL.Seconds()))
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.highest = max(l.highest, h.FencingToken)
	s.record = *r
	if last := l.seen; last.sameTerm(s) && s.expiry.Sub(last.expiry).Abs() < sameWrite {
		s.expiry = last.expiry
	}
	s.record.RenewTime = metav1.NewTime(s.expiry.Add(-ttl))
	s.raw = encode(s)
	return s
}

// sameWrite is how far apart two estimates of one expiry can be: the TTL is read with a precision of a
// millisecond, and its reply takes a moment. A renewal moves it by more.
const sameWrite = 25 * time.Millisecond

func encode(s *sighting) []byte {
	raw, err := json.Marshal(struct {
		rl.LeaderElectionRecord
		Epoch  uint64    `json:"epoch,omitempty"`
		Expiry time.Time `json:"expiry,omitzero"`
	}{s.record, s.epoch, s.expiry})
	if err != nil {
		panic(err) // strings, numbers and times: there is nothing that could fail
	}
	return raw
}

// free makes an answer for a lease that nobody holds: as if the last holder had released it.
func (l *Lock) free(ctx context.Context) (*sighting, error) {
	last := uint64(0)
	if l.cfg.Manager.Mode() == redlock.ModeSingle {
		var err error
		if last, err = l.cfg.Manager.LastToken(ctx, l.keys.Epoch); err != nil {
			return nil, l.wrap("reading", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.highest = max(l.highest, last)
	s := &sighting{record: rl.LeaderElectionRecord{LeaseDurationSeconds: 1}}
	switch {
	case l.highest > 0:
		s.record.LeaderTransitions = int(l.highest - 1)
	case l.seen != nil: // without epochs what we saw ourselves has to do
		s.record.LeaderTransitions = l.seen.record.LeaderTransitions
	default:
		return nil, apierrors.NewNotFound(resource, l.cfg.Name)
	}
	s.raw = encode(s)
	return s, nil
}

// resource is what client-go's errors call a lease.
var resource = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}
