//go:build chaos && linux

package chaos

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ndyakov/go-redlock/internal/process"
	"github.com/ndyakov/go-redlock/internal/redistest"
)

const (
	numCandidates = 3
	patience      = 30 * time.Second // for what must happen once nothing is wrong any more
)

// cluster is an election: servers, candidates, and a proxy for each of these in front of each of those.
type cluster struct {
	t          *testing.T
	servers    []*server
	candidates []*contender
	floor      floor
	history    *history
}

// server is a redis-server whose wall clock can be put off.
type server struct {
	*redistest.Server
	clock string // the file that says by how much, in µs
}

// contender is a candidate as the test sees it, over all its lives.
type contender struct {
	number  int
	proxies []*redistest.Proxy // by server
	life    int
	*process.Process
	said *reader       // of this life
	log  *bytes.Buffer // likewise
}

// newCluster starts servers, with the library of wallclock, and candidates.
func newCluster(t *testing.T, nodes int, library string) *cluster {
	t.Helper()
	c := &cluster{t: t, floor: floor(t.TempDir()), history: newHistory()}
	for i := range nodes {
		clock := filepath.Join(t.TempDir(), "offset")
		s := &server{clock: clock}
		s.set(t, 0)
		options := []redistest.Option{redistest.WithEnv("LD_PRELOAD="+library, "WALLCLOCK_OFFSET="+clock)}
		if nodes == 1 {
			options = append(options, redistest.WithAOF())
		}
		s.Server = redistest.Start(t, options...)
		c.servers = append(c.servers, s)
		c.history.note("server %d has process ID %d", i, s.Pid())
	}
	for i := range numCandidates {
		cand := &contender{number: i}
		for _, s := range c.servers {
			cand.proxies = append(cand.proxies, redistest.NewProxy(t, s.Addr()))
		}
		c.candidates = append(c.candidates, cand)
		c.start(cand)
		t.Cleanup(func() { c.end(cand) })
	}
	return c
}

// wallclock builds the library that, loaded into a server, puts a process's wall clock off.
func wallclock(t *testing.T) string {
	t.Helper()
	library := filepath.Join(t.TempDir(), "wallclock.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, "testdata/wallclock.c").CombinedOutput(); err != nil {
		t.Fatalf("cannot build wallclock.c: %v\n%s", err, out)
	}
	return library
}

// set puts the server's clock off by d.
func (s *server) set(t *testing.T, d time.Duration) {
	t.Helper()
	var offset [8]byte
	binary.NativeEndian.PutUint64(offset[:], uint64(d.Microseconds()))
	file, err := os.OpenFile(s.clock, os.O_CREATE|os.O_WRONLY, 0o600) // the same file: the server has mapped it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Write(offset[:]); err != nil {
		t.Fatal(err)
	}
}

// start begins another life of a candidate.
func (c *cluster) start(cand *contender) {
	c.t.Helper()
	cand.life++
	o := order{Name: fmt.Sprintf("%d.%d", cand.number, cand.life), Floor: c.floor}
	for _, p := range cand.proxies {
		o.Addrs = append(o.Addrs, p.Addr())
	}
	line, err := json.Marshal(o)
	if err != nil {
		c.t.Fatal(err)
	}
	cand.said, cand.log = c.history.reader(cand.number, o.Name), new(bytes.Buffer)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), orderVariable+"="+string(line))
	cmd.Stdout, cmd.Stderr = cand.said, cand.log
	if cand.Process, err = process.Start(cmd); err != nil {
		c.t.Fatal(err)
	}
}

// end ends a life of a candidate by force, and looks at what it wrote.
func (c *cluster) end(cand *contender) {
	cand.Kill()
	log := cand.log.String()
	if strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic:") {
		c.t.Errorf("candidate %d.%d wrote:\n%s", cand.number, cand.life, log)
	}
}

// terminate has a life of a candidate end in good order, once it has begun.
func (c *cluster) terminate(cand *contender) {
	c.t.Helper()
	select {
	case <-cand.said.begun:
	case <-cand.Exited():
	case <-time.After(patience):
		c.t.Errorf("candidate %d.%d does not begin within %v", cand.number, cand.life, patience)
	}
	if err := cand.Signal(syscall.SIGTERM); err != nil {
		c.t.Errorf("candidate %d.%d has ended by itself: %v", cand.number, cand.life, err)
	}
}

// leader is who led last.
func (c *cluster) leader() *contender { return c.candidates[c.history.last()] }

// try fails the test if something cannot be done to a candidate.
func (c *cluster) try(cand *contender, do func() error) {
	c.t.Helper()
	if err := do(); err != nil {
		c.t.Errorf("candidate %d.%d: %v", cand.number, cand.life, err)
	}
}

// awaitLeader expects somebody to lead from now on.
func (c *cluster) awaitLeader() {
	c.t.Helper()
	healed := now()
	for deadline := time.Now().Add(patience); !c.history.led(healed); time.Sleep(look) {
		if time.Now().After(deadline) {
			c.t.Errorf("nobody has led for %v since nothing is wrong any more", patience)
			return
		}
	}
	c.history.note("somebody leads, %.3fs after nothing is wrong any more", float64(now()-healed)/1e9)
}

// awaitEnd has all candidates end in good order.
func (c *cluster) awaitEnd() {
	c.t.Helper()
	for _, cand := range c.candidates {
		c.terminate(cand)
	}
	timeout := time.After(patience)
	for _, cand := range c.candidates {
		select {
		case <-cand.Exited():
			if err := cand.Err(); err != nil {
				c.t.Errorf("candidate %d.%d: %v; it wrote:\n%s", cand.number, cand.life, err, cand.log)
			}
		case <-timeout:
			c.t.Errorf("candidate %d.%d does not end within %v", cand.number, cand.life, patience)
			return
		}
	}
}
