package redlock

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ndyakov/go-redlock/internal/boottime"
)

// tokenLength is the length of an ownership token: 20 bytes in hexadecimal.
const tokenLength = 40

// newToken returns a fresh ownership token. It is a capability, by which a lease can be
// released: it must reach no log and no error.
func newToken() string {
	b := make([]byte, tokenLength/2)
	rand.Read(b) // never fails: the runtime ends the process instead
	return hex.EncodeToString(b)
}

// encodeValue returns what is stored at the key: the bare token, as other Redlock clients
// write it, or token ":" fence ":" metadata.
func encodeValue(token string, fence uint64, metadata string, bare bool) string {
	if bare {
		return token
	}
	return token + ":" + strconv.FormatUint(fence, 10) + ":" + metadata
}

// isPending reports whether a stored value is that of a lease whose fencing token is not agreed yet.
func isPending(value string) bool {
	return len(value) > tokenLength+1 && value[tokenLength:tokenLength+2] == "::"
}

// decodeValue reads a stored value. One that is not of our form, such as another
// client's, has neither fence nor metadata.
func decodeValue(value string) (fence uint64, metadata string) {
	if len(value) <= tokenLength || value[tokenLength] != ':' {
		return 0, ""
	}
	number, metadata, ok := strings.Cut(value[tokenLength+1:], ":")
	if !ok {
		return 0, ""
	}
	fence, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0, ""
	}
	return fence, metadata
}

// tokenOf returns what tells one acquisition from another in a stored value.
func tokenOf(value string) string {
	if len(value) > tokenLength && value[tokenLength] == ':' {
		return value[:tokenLength]
	}
	return value
}

// lease is one acquisition as it stands on the nodes: what was sent under its token, and
// what may therefore still turn up there. It is safe for concurrent use.
type lease struct {
	key   string
	token string

	mu     sync.Mutex
	traces []trace // by node
	secret bool    // nobody is to be told of its release
}

// trace is what a lease may have left on one node.
type trace struct {
	creating bool             // a write that creates the key is under way, or of unknown fate
	denied   bool             // it was answered, and created nothing
	ended    chan struct{}    // closed when its call has returned
	expiry   boottime.Instant // when whatever was sent so far has surely expired
	shortest time.Duration    // smallest TTL among renewals of unknown fate; 0: none
}

func newLease(key string, nodes int) *lease {
	return &lease{key: key, token: newToken(), traces: make([]trace, nodes)}
}

// creates notes, before it is sent, a write that may create the key on node i. It reports
// false, and the write must not be sent, while the fate of an earlier one is open.
func (l *lease) creates(i int, ttl time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.traces[i].creating {
		return false
	}
	l.traces[i].creating, l.traces[i].denied = true, false
	l.traces[i].ended = make(chan struct{})
	l.extendTrace(i, ttl)
	return true
}

// created notes how that write ended. After most errors it may still be executed.
func (l *lease) created(i int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || notExecuted(err) {
		l.traces[i].creating = false
	}
	close(l.traces[i].ended)
}

// ended is closed when the latest write that creates the key on node i has been answered, or given up.
func (l *lease) ended(i int) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.traces[i].ended
}

// wasDenied notes that node i answered that write with no, sent once as it was: there is nothing.
func (l *lease) wasDenied(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.traces[i].denied = true
}

// maybeOn reports whether the key may be on node i by the doing of this lease.
func (l *lease) maybeOn(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.traces[i].denied
}

// renews notes, before it is sent, a renewal on every node.
func (l *lease) renews(ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.traces {
		l.extendTrace(i, ttl)
	}
}

// The TTL begins when the server executes the command, a phase later at most if it
// is executed in time, and the server's clock may be slow.
func (l *lease) extendTrace(i int, ttl time.Duration) {
	end := boottime.Now().Add(ttl + ttl/10 + time.Second)
	if end.After(l.traces[i].expiry) {
		l.traces[i].expiry = end
	}
}

// unanswered notes that the fate of a renewal on node i is unknown: it may be executed
// after a later, longer one, and cut that short.
func (l *lease) unanswered(i int, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := &l.traces[i]; t.shortest == 0 || ttl < t.shortest {
		t.shortest = ttl
	}
}

// surely returns how much of a TTL granted by node i can be relied on.
func (l *lease) surely(i int, ttl time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.traces[i].shortest; s != 0 {
		return min(ttl, s)
	}
	return ttl
}

// hush has the release of a lease that never came about pass unheard. No majority had it, so nobody waits for it; but those
// who wait for the holder, or for nodes that refuse to write, would be woken, try, undo that, and so wake each other, or
// even themselves, without end.
func (l *lease) hush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.secret = true
}

// channel returns where the release is told, "" for nowhere.
func (l *lease) channel() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.secret {
		return ""
	}
	return releaseChannel(l.key)
}

// open reports whether a write that creates the key on node i may still be executed.
func (l *lease) open(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.traces[i].creating
}

// settled notes the answer of node i to a release, and reports whether nothing of this lease can turn up there
// any more. A release that found nothing proves that only if no write was open when it was sent: the write may
// have been executed after it, though its answer came first.
func (l *lease) settled(i int, wasOpen, deleted bool, err error) bool {
	if err != nil && !isWrongType(err) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if deleted {
		l.traces[i].creating = false // it has been executed: that is what was deleted
	}
	return deleted || !wasOpen
}

// expired reports whether whatever was sent to node i is gone by itself.
func (l *lease) expired(i int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.traces[i].expiry.Until() <= 0
}
