package redlock

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestTokensAre40HexCharactersAndFresh(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		token := newToken()
		if !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(token) {
			t.Fatalf("token %q", token)
		}
		if seen[token] {
			t.Fatalf("token %q twice", token)
		}
		seen[token] = true
	}
}

func TestStoredValues(t *testing.T) {
	token := strings.Repeat("ab", 20)
	for _, c := range []struct {
		value    string
		fence    uint64
		metadata string
		token    string
	}{
		{encodeValue(token, 0, "", true), 0, "", token},
		{encodeValue(token, 7, "", false), 7, "", token},
		{encodeValue(token, 1<<60+1, "a:b:c", false), 1<<60 + 1, "a:b:c", token},
		{encodeValue(token, 0, `{"x":1}`, false), 0, `{"x":1}`, token},
		{"another client's token", 0, "", "another client's token"},
		{token + ":x:meta", 0, "", token},
		{token + ":5", 0, "", token},
		{"", 0, "", ""},
	} {
		fence, metadata := decodeValue(c.value)
		if fence != c.fence || metadata != c.metadata || tokenOf(c.value) != c.token {
			t.Errorf("value %q reads as token %q, fence %d, metadata %q", c.value, tokenOf(c.value), fence, metadata)
		}
	}
	if v := encodeValue(token, 0, "", true); v != token {
		t.Errorf("a bare lease is stored as %q, want the token alone", v)
	}
}

var (
	errLost    = errors.New("connection reset")
	errDial    = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	errRefused = redis.Nil
)

// What may still turn up on a node must be looked for; what cannot, must not.
func TestALeaseIsSettledWhenNothingOfItCanTurnUp(t *testing.T) {
	for _, c := range []struct {
		name    string
		sent    bool  // a write that creates the key
		outcome error // of that write; errPending: none yet
		deleted bool  // by the release
		release error
		want    bool
	}{
		{"nothing was sent", false, nil, false, nil, true},
		{"granted and deleted", true, nil, true, nil, true},
		{"granted, and expired since", true, nil, false, nil, true},
		{"refused", true, errRefused, false, nil, true},
		{"never left", true, errDial, false, nil, true},
		{"reply lost, not there yet", true, errLost, false, nil, false},
		{"reply lost, found and deleted", true, errLost, true, nil, true},
		{"under way", true, errPending, false, nil, false},
		{"under way, found and deleted", true, errPending, true, nil, true},
		{"granted, release lost", true, nil, false, errLost, false},
		{"another type at the key", true, nil, false, wrongType{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLease("k", 1)
			if c.sent && !l.creates(0, time.Second) {
				t.Fatal("a first write must be allowed")
			}
			if c.sent && c.outcome != errPending {
				l.created(0, c.outcome)
			}
			if got := l.settled(0, l.open(0), c.deleted, c.release); got != c.want {
				t.Fatalf("settled = %v, want %v", got, c.want)
			}
		})
	}
}

// The answers of a SET and of the release that was sent after it may come in another order than they were given.
func TestAReleaseThatFoundNothingSaysNothingOfAnOpenWrite(t *testing.T) {
	l := newLease("k", 1)
	l.creates(0, time.Second)
	wasOpen := l.open(0) // the release is sent, and executed
	l.created(0, nil)    // the write is executed after it, and answered first
	if l.settled(0, wasOpen, false, nil) {
		t.Fatal("the lease counts as settled, and its key is on the node")
	}
}

var errPending = errors.New("no outcome yet")

type wrongType struct{}

func (wrongType) Error() string {
	return "WRONGTYPE Operation against a key holding the wrong kind of value"
}
func (wrongType) RedisError() {}

func TestOnlyOneCreatingWriteIsOpenAtATime(t *testing.T) {
	l := newLease("k", 1)
	l.creates(0, time.Second)
	l.created(0, errLost)
	if l.creates(0, time.Second) {
		t.Fatal("a second write while the fate of the first is open: which one a release deleted could not be told")
	}
	l.settled(0, true, true, nil)
	if !l.creates(0, time.Second) {
		t.Fatal("the first has been found: a second must be allowed")
	}
}

// A renewal that was not answered may be executed after a later one, and cut it short.
func TestAnUnansweredShorterRenewalLimitsWhatANodeIsTrustedWith(t *testing.T) {
	l := newLease("k", 2)
	l.unanswered(0, 10*time.Second)
	l.unanswered(0, 30*time.Second)
	if got := l.surely(0, time.Hour); got != 10*time.Second {
		t.Errorf("surely = %v, want 10s", got)
	}
	if got := l.surely(0, 5*time.Second); got != 5*time.Second {
		t.Errorf("surely = %v, want 5s", got)
	}
	if got := l.surely(1, time.Hour); got != time.Hour {
		t.Errorf("surely = %v on a node that answered everything, want 1h", got)
	}
}

func TestWhatAnErrorProves(t *testing.T) {
	for _, c := range []struct {
		err         error
		notExecuted bool
		permanent   bool
	}{
		{errDial, true, false},
		{errLost, false, false},
		{context.DeadlineExceeded, false, false},
		{errNotSent, true, false},
		{redis.ErrPoolTimeout, true, false},
		{wrongType{}, true, true},
		{replyError("NOAUTH Authentication required."), true, true},
		{replyError("LOADING Redis is loading the dataset in memory"), true, false},
		{replyError("READONLY You can't write against a read only replica."), true, false},
		{replyError(badCounter + " the counter is odd"), true, true},
	} {
		if notExecuted(c.err) != c.notExecuted || permanent(c.err) != c.permanent {
			t.Errorf("%v: notExecuted %v, permanent %v; want %v, %v", c.err,
				notExecuted(c.err), permanent(c.err), c.notExecuted, c.permanent)
		}
	}
}

func TestATokenIsTakenOutOfWhatAServerSays(t *testing.T) {
	token := newToken()
	for _, quoted := range []string{token, token[:12]} { // servers cut long arguments
		err := withoutToken(replyError("ERR unknown command 'EVALSHA', with args beginning with: '"+quoted+"'"), token+":7:meta")
		if !isReply(err) || strings.Contains(err.Error(), quoted) || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("error is %q", err)
		}
	}
	if err := withoutToken(errLost, token); err != errLost {
		t.Errorf("an error without a token became %v", err)
	}
}
