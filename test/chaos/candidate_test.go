//go:build chaos && linux

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/ndyakov/go-redlock/election"
	"github.com/ndyakov/go-redlock/redlock"
)

const (
	ttl           = time.Second
	renewDeadline = ttl * 7 / 10
	retryPeriod   = ttl / 5
	look          = 5 * time.Millisecond // between two looks of a leader whether it leads
)

const orderVariable = "CHAOS_CANDIDATE"

// order is what a candidate's process is told to do.
type order struct {
	Name  string
	Addrs []string // one: a single Redis; more: Redlock
	Floor floor
}

// event is what a candidate tells, a line each.
type event struct {
	What         what
	Epoch        uint64
	Call, Return int64  // in ns on a clock that all processes share: it happened in between
	Fault        string // what must not be
}

type what string

const (
	begins   what = "begins"   // its life, and will heed a signal to end
	acquires what = "acquires" // the lease, with this epoch
	leads    what = "leads"    // it has just looked
	wrong    what = "wrong"
)

// now reads the clock that all processes share.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// floor is a folder with a file for each epoch that a leader has begun with. It stands for a protected resource that knows
// the highest epoch, and nobody who is frozen can keep others from it.
type floor string

func (f floor) highest(context.Context) (uint64, error) {
	files, err := os.ReadDir(string(f)) // sorted
	if err != nil || len(files) == 0 {
		return 0, err
	}
	return strconv.ParseUint(files[len(files)-1].Name(), 10, 64)
}

// raise fails with fs.ErrExist if the epoch was used before.
func (f floor) raise(epoch uint64) error {
	file, err := os.OpenFile(filepath.Join(string(f), fmt.Sprintf("%020d", epoch)), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// candidacy is what a candidate's process does.
type candidacy struct {
	order
	elector *election.Elector
	asked   atomic.Int64 // when its latest attempt to take the lease began

	mu  sync.Mutex
	out *json.Encoder
}

// candidate takes part until the process is told to end, and returns its exit status.
func candidate(line string) int {
	c := &candidacy{out: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal([]byte(line), &c.order); err != nil {
		return fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c.say(event{What: begins})
	var nodes []redlock.Node
	for _, addr := range c.Addrs {
		client := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = client.Close() }()
		nodes = append(nodes, client)
	}
	if err := c.run(ctx, nodes); err != nil {
		return fail(err)
	}
	return 0
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "chaos:", err)
	return 1
}

func (c *candidacy) run(ctx context.Context, nodes []redlock.Node) error {
	logger := funcr.New(func(_, line string) { fmt.Fprintln(os.Stderr, line) }, funcr.Options{LogTimestamp: true, Verbosity: 1})
	manager, err := redlock.NewWithConfig(redlock.Config{
		Expiry:       ttl,
		RestartGuard: len(nodes) > 1, // those servers forget everything
		Logger:       logger,
	}, nodes...)
	if err != nil {
		return err
	}
	defer func() { _ = manager.Close() }()
	c.elector, err = election.New(election.Config{
		Manager:         manager,
		Name:            "chaos",
		Identity:        c.Name,
		LeaseDuration:   ttl,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		QuorumFencing:   len(nodes) > 1,
		FenceFloor: func(ctx context.Context) (uint64, error) {
			c.asked.Store(now())
			return c.Floor.highest(ctx)
		},
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: c.lead, OnStoppedLeading: c.stopped},
		Logger:    logger,
	})
	if err != nil {
		return err
	}
	return c.elector.Run(ctx)
}

// lead is the work of one term: it looks all the time whether it leads, and takes a while to stop when it is asked to.
func (c *candidacy) lead(ctx context.Context) {
	epoch, _ := election.EpochFrom(ctx)
	err := c.Floor.raise(epoch)
	if c.elector.Epoch() != epoch {
		return // it was lost before it began, perhaps long ago
	}
	if err != nil {
		c.fault("leads with epoch %d: %v", epoch, err)
	}
	c.say(event{What: acquires, Epoch: epoch, Call: c.asked.Load(), Return: now()})
	for ending := (<-chan time.Time)(nil); ; time.Sleep(look) {
		if !c.looks(epoch) {
			return
		}
		select {
		case <-ending:
			return
		default:
		}
		if ending == nil && ctx.Err() != nil {
			if errors.Is(context.Cause(ctx), election.ErrLost) && c.looks(epoch) {
				c.fault("is told that epoch %d is lost, and leads", epoch)
			}
			ending = time.After(rand.N(ttl / 2))
		}
	}
}

// looks reports whether the candidate leads with this epoch, and tells it.
func (c *candidacy) looks(epoch uint64) bool {
	call := now()
	if c.elector.Epoch() != epoch {
		return false
	}
	c.say(event{What: leads, Epoch: epoch, Call: call, Return: now()})
	return true
}

func (c *candidacy) stopped() {
	if c.elector.IsLeader() {
		c.fault("has stopped leading, and leads")
	}
}

func (c *candidacy) fault(format string, args ...any) {
	c.say(event{What: wrong, Fault: fmt.Sprintf(format, args...)})
}

func (c *candidacy) say(e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(e) // nobody hears it any more, which ends the process
}
