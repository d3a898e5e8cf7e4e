package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oldestVersion is the first major version of Redis in which all scripts work: SET with KEEPTTL.
const oldestVersion = 6

// clockTolerance is by how much the clocks of two servers may differ before Verify calls it a fault. Leases do not compare
// them; but whoever sets such a clock right by a step ends leases early.
const clockTolerance = time.Second

// Verify asks every node how it is set up, and returns what makes leases unsafe there: an error for every fault, with
// the index of its node and what to do, joined; nil if there is none. The faults are:
//
//   - two nodes that are the same server, or belong to the same Redis Cluster;
//   - a replica;
//   - a maxmemory-policy other than noeviction, with a maxmemory: leases have a TTL, so volatile-* evicts them too;
//   - no persistence; on Redlock anything less than appendonly with appendfsync always, because a node must keep what
//     it has acknowledged. With Config.RestartGuard that is no fault until NewLock was asked for fencing tokens: the guard
//     makes up for forgotten leases, not for forgotten counters;
//   - a clock that differs from the others' by more than a second, as measured in the middle of the exchange;
//   - a version older than Redis 6.0;
//   - a node that does not answer.
//
// A node that may not be asked (an ACL, a managed service, a client without Process) is no fault: the Logger is told at level 1.
// Of a Redis Cluster every primary is asked, of a Ring every shard. Whether the keys of a lock are in one slot
// is not asked: an acquisition is refused with CROSSSLOT if they are not.
//
// It is meant for the start of a program and for health pages; nothing is changed on the nodes. Every question is bounded by the
// OperationTimeout, and the whole by a few of them. If ctx ends first, the error is ctx's.
func (m *Manager) Verify(ctx context.Context) error {
	if err := m.usable(ctx); err != nil {
		return fmt.Errorf("redlock: verify: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()

	answered := make([][]*server, len(m.peers))
	faults := make([]error, len(m.peers)) // of nodes that cannot be reached
	for i := range faults {
		faults[i] = faultOf(i, "", noAnswer(questions*m.cfg.OperationTimeout))
	}
	// Nothing has to be known of a question that nobody waits for any more: unlike a command, it ends with ctx.
	ph := askFor(m, ctx, questions*m.cfg.OperationTimeout, func(_ context.Context, p *peer) ([]*server, error) {
		return p.examine(ctx, m)
	})
	_ = ph.collect(ctx, ph.bound, func(a answer[[]*server]) bool {
		answered[a.node], faults[a.node] = a.value, faultOf(a.node, "", a.err)
		return false
	})
	if err := m.usable(ctx); err != nil {
		return fmt.Errorf("redlock: verify: %w", err)
	}
	servers := slices.Concat(answered...)
	for _, s := range servers {
		faults = append(faults, s.faults(m)...)
	}
	return errors.Join(slices.Concat(faults, related(servers), clocks(servers))...)
}

// faultOf words what is wrong with a node, or with one server of it; nil if err is.
func faultOf(node int, addr string, err error) error {
	switch {
	case err == nil:
		return nil
	case addr != "":
		return fmt.Errorf("redlock: node %d (%s): %w", node, addr, err)
	default:
		return fmt.Errorf("redlock: node %d: %w", node, err)
	}
}

// faults are those that the server shows by itself.
func (s *server) faults(m *Manager) (faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, faultOf(s.node, s.addr, fmt.Errorf(format, args...)))
	}
	if s.err != nil {
		fault("%w", s.err)
	}
	if s.info["role"] == "slave" {
		fault("it is a replica of %s:%s: a lease needs the primary", s.info["master_host"], s.info["master_port"])
	}
	if v := s.info["redis_version"]; tooOld(v) {
		fault("its version is %s: scripts need Redis %d.0 or later", v, oldestVersion)
	}
	if limit, policy := s.info["maxmemory"], s.info["maxmemory_policy"]; policy != "" && policy != "noeviction" && limit != "" && limit != "0" {
		fault("its maxmemory-policy is %s, with a maxmemory of %s bytes: it may evict leases; set noeviction", policy, limit)
	}
	if !m.cfg.RestartGuard || m.fenced.Load() {
		if err := s.forgets(m.Mode()); err != nil {
			fault("%w", err)
		}
	}
	return faults
}

// forgets returns an error if the server loses more by a restart than the mode can bear.
func (s *server) forgets(mode Mode) error {
	aof, known := s.info["aof_enabled"]
	save, asked := s.config["save"]
	fsync := s.config["appendfsync"]
	switch {
	case !known:
		return nil
	case aof == "0" && mode == ModeRedlock:
		return errors.New("its appendonly is no: after a restart it grants leases and fencing tokens that it has forgotten to have " +
			"granted; set appendonly yes and appendfsync always")
	case aof == "0" && asked && save == "":
		return errors.New("it has no persistence (appendonly no, no save): a restart forgets all leases and counters; " +
			"set appendonly yes and appendfsync always")
	case mode == ModeRedlock && fsync != "" && fsync != "always":
		return fmt.Errorf("its appendfsync is %s: a crash forgets what it has just acknowledged; set appendfsync always", fsync)
	}
	return nil
}

// tooOld reports whether a version such as "7.0.15" is below the oldest one. What is no version is not judged.
func tooOld(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n < oldestVersion
}

// related reports nodes that are not independent, every pair once.
func related(servers []*server) (faults []error) {
	type pair [2]int
	told := make(map[pair]bool)
	for i, b := range servers {
		for _, a := range servers[:i] {
			nodes := pair{a.node, b.node}
			if a.node == b.node || told[nodes] {
				continue
			}
			if why := relation(a, b); why != "" {
				told[nodes] = true
				faults = append(faults, faultOf(b.node, b.addr, fmt.Errorf("%s node %d: every node must be an independent Redis primary", why, a.node)))
			}
		}
	}
	return faults
}

// relation returns what makes two servers, of different nodes, dependent on each other; "" for nothing.
func relation(a, b *server) string {
	if id := a.info["run_id"]; id != "" && id == b.info["run_id"] {
		return "it is the same server as"
	}
	// A member that has left may still be listed by the others, so an ID that both know proves nothing.
	if a.cluster != nil && b.cluster != nil && (a.cluster.members[b.cluster.id] || b.cluster.members[a.cluster.id]) {
		return "it belongs to the same Redis Cluster as"
	}
	return ""
}

// clocks reports the servers whose clocks differ from the one in the middle.
func clocks(servers []*server) (faults []error) {
	var timed []*server
	for _, s := range servers {
		if s.clock != nil {
			timed = append(timed, s)
		}
	}
	if len(timed) == 0 {
		return nil
	}
	byClock := slices.SortedFunc(slices.Values(timed), func(a, b *server) int { return cmp.Compare(a.clock.ahead, b.clock.ahead) })
	middle := byClock[(len(byClock)-1)/2]
	for _, s := range timed {
		ahead, give := s.clock.ahead-middle.clock.ahead, s.clock.give+middle.clock.give
		if ahead.Abs()-give <= clockTolerance {
			continue
		}
		which := "ahead of"
		if ahead < 0 {
			which = "behind"
		}
		faults = append(faults, faultOf(s.node, s.addr, fmt.Errorf(
			"its clock is %v %s that of node %d: have NTP keep both, by slewing", ahead.Abs().Round(time.Millisecond), which, middle.node)))
	}
	return faults
}
