package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// questions is how many commands one server is asked at most, with one for the topology of a Cluster.
const questions = 5

// server is what one Redis server tells of itself.
type server struct {
	node int    // which it is, or belongs to
	addr string // "" where the node is no more than this server
	err  error  // it stopped answering

	info    map[string]string // INFO; empty where that may not be asked, as is all of the following
	config  map[string]string // CONFIG GET
	clock   *clock            // TIME
	cluster *membership       // CLUSTER NODES
}

// clock is how far a server's clock is ahead of a local one that all servers are compared to, give or take the error.
type clock struct{ ahead, give time.Duration }

// membership is a server's place in its Redis Cluster.
type membership struct {
	id      string
	members map[string]bool
}

// examine asks the servers of a node.
func (p *peer) examine(ctx context.Context, m *Manager) ([]*server, error) {
	leave, err := p.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var mu sync.Mutex
	var servers []*server
	each := func(ctx context.Context, c *redis.Client) error {
		s := p.examineServer(ctx, m, c, c.Options().Addr)
		mu.Lock()
		defer mu.Unlock()
		servers = append(servers, s)
		return nil
	}
	switch n := p.node.(type) {
	case interface { // a Cluster: before ForEachShard, which includes replicas there
		ForEachMaster(context.Context, func(context.Context, *redis.Client) error) error
	}:
		err = n.ForEachMaster(ctx, each)
	case interface { // a Ring
		ForEachShard(context.Context, func(context.Context, *redis.Client) error) error
	}:
		err = n.ForEachShard(ctx, each)
	case processor:
		return []*server{p.examineServer(ctx, m, n, "")}, nil
	default:
		m.cfg.Logger.V(1).Info("Node cannot be asked", "node", p.index, "reason", "the client has no Process")
		return nil, nil
	}
	if err == nil && len(servers) == 0 {
		err = errors.New("its client knows no server that is up")
	}
	return servers, err
}

func (p *peer) examineServer(ctx context.Context, m *Manager, c processor, addr string) *server {
	s := &server{node: p.index, addr: addr}
	put := func(cmd redis.Cmder) bool { return s.put(ctx, m, c, cmd) }

	if info := redis.NewStringCmd(ctx, "INFO"); put(info) {
		s.info = parseInfo(info.Val())
	}
	setting := "save"
	if s.info["aof_enabled"] == "1" {
		setting = "appendfsync"
	}
	if config := redis.NewMapStringStringCmd(ctx, "CONFIG", "GET", setting); put(config) {
		s.config = config.Val()
	}
	asked := localTime()
	if t := redis.NewTimeCmd(ctx, "TIME"); put(t) {
		trip := localTime().Sub(asked)
		s.clock = &clock{ahead: t.Val().Sub(asked.Add(trip / 2)), give: trip / 2}
	}
	if s.info["cluster_enabled"] == "1" {
		if nodes := redis.NewStringCmd(ctx, "CLUSTER", "NODES"); put(nodes) {
			s.cluster = parseClusterNodes(nodes.Val())
		}
	}
	return s
}

// put asks one question, and reports whether it was answered. A refusal leaves the others to ask; silence ends it.
func (s *server) put(ctx context.Context, m *Manager, c processor, cmd redis.Cmder) bool {
	if s.err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.OperationTimeout)
	defer cancel()
	_ = c.Process(ctx, cmd) // the command carries the error
	err := cmd.Err()
	switch {
	case err == nil:
		return true
	case hasCode(err, "NOPERM"), hasCode(err, "ERR"): // not this user's, or not known
		m.cfg.Logger.V(1).Info("Node cannot be asked", "node", s.node, "address", s.addr, "question", cmd.Name(), "reason", err.Error())
	default:
		s.err = fmt.Errorf("%s failed: %w", strings.ToUpper(cmd.Name()), err)
	}
	return false
}

// origin is the beginning of the local clock that all servers are compared to: a monotonic one, which nobody sets.
var origin = time.Now()

func localTime() time.Time { return origin.Add(time.Since(origin)) }

// parseInfo reads the reply to INFO.
func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// parseClusterNodes reads the reply to CLUSTER NODES: a line for every member, with its ID, address and flags.
func parseClusterNodes(text string) *membership {
	c := &membership{members: make(map[string]bool)}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		c.members[words[0]] = true
		if strings.Contains(words[2], "myself") {
			c.id = words[0]
		}
	}
	return c
}
