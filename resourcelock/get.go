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

// sighting is what a look at the lease has shown.
type sighting struct {
	record rl.LeaderElectionRecord
	raw    []byte
	epoch  uint64
	ours   bool

	at            time.Time     // when it was looked
	earliest, end time.Time     // between these the lease expires, if it is not renewed
	shown         time.Time     // end, as it was first seen after the last write
	ttl           time.Duration // to which it is renewed
}

// others reports whether somebody else holds the lease.
func (s *sighting) others() bool { return s != nil && !s.ours && s.record.HolderIdentity != "" }

// sameTerm reports whether both show one acquisition.
func (s *sighting) sameTerm(o *sighting) bool {
	return s != nil && o != nil && s.ours == o.ours && s.record.HolderIdentity != "" &&
		s.record.HolderIdentity == o.record.HolderIdentity && s.epoch == o.epoch &&
		s.record.AcquireTime.Equal(&o.record.AcquireTime)
}

// sameWrite reports whether the lease was not renewed between two sightings of one term: the expiry is known only
// within the time that a reply takes.
func (s *sighting) sameWrite(o *sighting) bool {
	return s.sameTerm(o) && s.earliest.Add(-readPrecision).Before(o.end) && o.earliest.Add(-readPrecision).Before(s.end)
}

// readPrecision is that of a TTL as it is read: Redis counts in milliseconds, and the nodes of a majority were
// not written at the same moment.
const readPrecision = 10 * time.Millisecond

// Get returns the record of whoever holds the lease, or one without a holder when it is free. It is NotFound only
// where no term was ever held. Trouble with Redis is any other error.
//
// The raw bytes are the same between two writes, and others after every renewal and every change of hands.
func (l *Lock) Get(ctx context.Context) (*rl.LeaderElectionRecord, []byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, l.wrap("reading", err)
	}
	var s *sighting
	var err error
	if known := l.worthWaiting(); known != nil {
		s, err = l.waitForChange(ctx, known)
	} else {
		s, err = l.look(ctx)
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

// look reads the lease. Who holds it need not know it for longer than that: the end of a term must not
// wait for the network.
func (l *Lock) look(ctx context.Context) (*sighting, error) {
	t := l.current()
	if t.held() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, t.lock.ValidUntil())
		defer cancel()
	}
	before := time.Now()
	h, held, err := l.cfg.Manager.Holder(ctx, l.keys.Lease)
	if err != nil {
		return nil, l.wrap("reading", err)
	}
	if !held {
		return l.free(ctx)
	}
	s := l.sight(h, t)
	s.at = before
	s.expires(before, h.TTL)
	l.show(s)
	return s, nil
}

// sight makes a sighting of a holder. A lease is ours if we hold it, not if it bears our name: a record
// left by an earlier process with the same identity is somebody else's.
func (l *Lock) sight(h redlock.Holder, t *term) *sighting {
	s := &sighting{epoch: h.FencingToken, ttl: l.cfg.LeaseDuration, record: *record.Decode(h, l.cfg.LeaseDuration)}
	r := &s.record
	if s.ttl == 0 {
		s.ttl = time.Duration(r.LeaseDurationSeconds) * time.Second
	}
	s.ours = t.held() && h.FencingToken == t.lock.FencingToken() && h.Metadata == t.record
	if !s.ours && r.HolderIdentity == l.cfg.Identity {
		r.HolderIdentity += " (another process)"
	}
	if r.LeaseDurationSeconds <= 0 { // no record; with 0 client-go would try to take the lease over all the time
		r.LeaseDurationSeconds = int(min(math.Ceil(h.TTL.Seconds()), math.MaxInt32))
	}
	return s
}

// expires notes that ttl was left of the lease, asked before and answered now.
func (s *sighting) expires(before time.Time, ttl time.Duration) {
	s.earliest, s.end = before.Add(ttl), time.Now().Add(ttl)
}

// show completes s for client-go.
func (l *Lock) show(s *sighting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.highest = max(l.highest, s.epoch)
	l.transitions = s.record.LeaderTransitions
	s.shown = s.end
	if s.sameWrite(l.seen) {
		s.shown = l.seen.shown
	}
	s.record.RenewTime = metav1.NewTime(s.shown.Add(-s.ttl))
	s.encode()
}

// encode makes the raw bytes. The expiry tells one renewal from another: RenewTime has no more than seconds there.
func (s *sighting) encode() {
	var err error
	s.raw, err = json.Marshal(struct {
		rl.LeaderElectionRecord
		Epoch  uint64    `json:"epoch,omitempty"`
		Expiry time.Time `json:"expiry,omitzero"`
	}{s.record, s.epoch, s.shown})
	if err != nil {
		panic(err) // strings, numbers and times: there is nothing that could fail
	}
}

// free makes a sighting of a lease that nobody holds: as if the last holder had released it.
func (l *Lock) free(ctx context.Context) (*sighting, error) {
	last := uint64(0)
	if l.cfg.hasEpochs() {
		var err error
		if last, err = l.cfg.Manager.LastToken(ctx, l.keys.Epoch); err != nil {
			return nil, l.wrap("reading", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.highest = max(l.highest, last)
	if l.highest > 0 {
		l.transitions = int(l.highest - 1)
	}
	if l.transitions < 0 {
		return nil, apierrors.NewNotFound(resource, l.cfg.Name)
	}
	s := &sighting{record: rl.LeaderElectionRecord{LeaseDurationSeconds: 1, LeaderTransitions: l.transitions}}
	s.encode()
	return s, nil
}

// resource is what client-go's errors call a lease.
var resource = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}
