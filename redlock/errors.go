package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The errors a caller decides on. They come wrapped with the operation and the
// key: compare with errors.Is.
var (
	// ErrNotAcquired says that somebody else holds the lease, or that too few
	// nodes granted it; errors.As with *QuorumError tells which.
	ErrNotAcquired = errors.New("lease not acquired")

	// ErrAlreadyHeld says that this very Lock holds a valid lease.
	ErrAlreadyHeld = errors.New("lease already held by this lock")

	// ErrNotHeld says that Unlock or Extend was called on a Lock without a lease.
	ErrNotHeld = errors.New("lease not held")

	// ErrLockLost says that the lease expired, disappeared, or could not be renewed.
	ErrLockLost = errors.New("lease lost")

	// ErrFencingUnsupported says that WithFencingToken was asked of a Redlock
	// manager: independent nodes have no common counter. WithQuorumFencing does without.
	ErrFencingUnsupported = errors.New("fencing tokens from a counter need a single Redis authority")

	// ErrInconclusive says that too few nodes answered to know; a lease that was
	// held is still held.
	ErrInconclusive = errors.New("too few nodes answered")

	// ErrClosed says that the Manager has been closed.
	ErrClosed = errors.New("manager is closed")
)

// QuorumError reports an operation that did not succeed on the required number of
// nodes, or a release that missed some node.
//
// It unwraps to ErrNotAcquired for an acquisition; for a renewal to ErrLockLost, or to
// ErrInconclusive while the lease is still held; for a release to ErrLockLost, or to
// nothing where a majority did release; for a read to ErrInconclusive.
type QuorumError struct {
	Operation  string        // "acquire", "extend", "release" or "read"
	Succeeded  int           // nodes that did it
	Required   int           // nodes that had to
	NodeErrors map[int]error // why others could not, by index of the node; a node that just refused is not here

	key     string
	nodes   int // of all
	refused int // nodes where somebody else, or nobody, held the key
	cause   error
}

// Contended reports whether an acquisition failed because so many nodes have the lease of somebody else that there was no
// majority to be had, whatever the other nodes would have said. Otherwise too few nodes answered to know.
func (e *QuorumError) Contended() bool {
	return e.Operation == "acquire" && e.refused > e.nodes-e.Required
}

func (e *QuorumError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "redlock: %s", e.Operation)
	if e.key != "" {
		fmt.Fprintf(&b, " %q", e.key)
	}
	if e.cause != nil {
		fmt.Fprintf(&b, ": %v", e.cause)
	}
	fmt.Fprintf(&b, ": %d succeeded, %d required", e.Succeeded, e.Required)
	switch {
	case e.refused > 0 && e.Operation == "acquire":
		fmt.Fprintf(&b, ", held by somebody else on %d", e.refused)
	case e.refused > 0:
		fmt.Fprintf(&b, ", no longer there on %d", e.refused)
	}
	for _, i := range sortedKeys(e.NodeErrors) {
		fmt.Fprintf(&b, "; node %d: %v", i, e.NodeErrors[i])
	}
	return b.String()
}

// Unwrap returns the sentinel of the outcome, see QuorumError.
func (e *QuorumError) Unwrap() error { return e.cause }

func sortedKeys(m map[int]error) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// failed wraps err, mostly a sentinel, with what was done to which key.
func failed(operation, key string, err error) error {
	return fmt.Errorf("redlock: %s %q: %w", operation, key, err)
}

// invalid reports bad input by the name and the value of the field.
func invalid(field string, value any, why string) error {
	return fmt.Errorf("redlock: %s is %v: %s", field, value, why)
}

// noAnswer is the error of a node that stayed silent for the whole of a phase.
func noAnswer(bound time.Duration) error {
	return fmt.Errorf("did not answer within %v: %w", bound, context.DeadlineExceeded)
}

var errUnexpectedReply = errors.New("the node's reply is not of the expected form")

// errOwnKey explains a refusal by ourselves: a client without Process repeats a command whose reply was lost.
var errOwnKey = errors.New("it said no, but had the key from this very attempt: an earlier reply was lost")

// errOwnLeftover explains a refusal that may be due to ourselves.
var errOwnLeftover = errors.New("an earlier attempt of this process may still hold the key there; it is being undone")

// withoutToken keeps a token out of an error: a server may quote the arguments of a command that
// it rejects, and cut them short.
func withoutToken(err error, value string) error {
	if err == nil {
		return nil
	}
	token := value[:min(len(value), tokenLength)]
	for n := len(token); n >= tokenLength/4; n-- {
		if !strings.Contains(err.Error(), token[:n]) {
			continue
		}
		text := strings.ReplaceAll(err.Error(), token[:n], "(token)")
		if isReply(err) {
			return replyError(text)
		}
		return errors.New(text)
	}
	return err
}

// replyError is an answer of the server whose text has been changed.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// notExecuted reports whether err proves that the node did not, and never will, execute
// the command. Any other error leaves it open: the reply may have been lost on its way.
func notExecuted(err error) bool {
	if isGuarded(err) {
		return false
	}
	var dial *net.OpError
	return isReply(err) ||
		errors.Is(err, errNotSent) ||
		errors.Is(err, redis.ErrPoolTimeout) ||
		errors.As(err, &dial) && dial.Op == "dial"
}

// isReply reports whether err is an answer of the server and not trouble on the way to it.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// permanent reports whether err is an answer that another attempt will get as well.
func permanent(err error) bool {
	return isWrongType(err) || slices.ContainsFunc([]string{
		badCounter, "CROSSSLOT", "NOAUTH", "NOPERM", "WRONGPASS",
	}, func(code string) bool { return hasCode(err, code) })
}

// isWrongType reports that the key is there and is no string: not a lease of ours.
func isWrongType(err error) bool { return hasCode(err, "WRONGTYPE") }

func hasCode(err error, code string) bool {
	var reply redis.Error
	return errors.As(err, &reply) && strings.HasPrefix(reply.Error(), code)
}

// badCounter is the code with which acquire.lua refuses a counter or a fence floor.
const badCounter = "BADCOUNTER"
