package election

import (
	"context"
	"time"

	"github.com/ndyakov/go-redlock/internal/record"
	"github.com/ndyakov/go-redlock/redlock"
)

const (
	// maxVacancy is how long Watch waits between two looks while nobody leads: nothing tells of a beginning.
	maxVacancy = time.Second

	// maxTerm is how long it waits if the lease does not expire, and so is none of ours.
	maxTerm = time.Minute
)

// Watch tells who leads an election, without taking part in it: at once what it finds, then every change, the zero
// Leader when nobody leads. A reader that is slow gets the latest state only. While Redis is out of reach nothing
// is told. A change of hands is seen at the release, or when the TTL that was seen last is over,
// a minute later at most.
//
// The channel is closed when ctx ends, when m is closed, and at once if m is nil or no election can have the name.
func Watch(ctx context.Context, m *redlock.Manager, namespace, name string) <-chan Leader {
	out := make(chan Leader, 1)
	keys, err := record.NewKeys(namespace, name)
	if err != nil || m == nil {
		close(out)
		return out
	}
	go func() {
		defer close(out)
		watch(ctx, m, keys.Lease, func(l Leader) {
			select {
			case <-out: // not taken, and outdated
			default:
			}
			out <- l // there is room: nobody else sends
		})
	}()
	return out
}

func watch(ctx context.Context, m *redlock.Manager, key string, tell func(Leader)) {
	w := m.Watch(key)
	defer w.Close()
	var last Leader
	vacancy := time.Duration(0)
	for first := true; ; {
		h, held, err := m.Holder(ctx, key)
		wait := maxVacancy
		if err == nil {
			l := Leader{}
			if held {
				l, wait, vacancy = leaderOf(h), min(h.TTL, maxTerm), 0
			} else {
				vacancy = min(2*vacancy+5*time.Millisecond, maxVacancy)
				wait = vacancy
			}
			if first || !l.sameTerm(last) {
				tell(l)
			}
			first, last = false, l
		}
		if w.Wait(ctx, wait) != nil {
			return
		}
	}
}
