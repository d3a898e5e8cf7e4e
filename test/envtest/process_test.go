//go:build envtest

package envtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// logbook has what the candidates of one election tell, in order.
type logbook struct {
	mu      sync.Mutex
	entries []entry
	news    chan struct{}
}

type entry struct {
	event
	by *process
}

func newLogbook() *logbook { return &logbook{news: make(chan struct{})} }

func (l *logbook) add(e entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
	close(l.news)
	l.news = make(chan struct{})
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, e := range l.entries {
		fmt.Fprintf(&b, "%10.3fs  %-20s %s (epoch %d) %s\n", float64(e.At-l.entries[0].At)/1e9, e.by.id, e.What, e.Epoch, e.Error)
	}
	return b.String()
}

// await returns the first entry that matches, waiting for it if need be.
func (l *logbook) await(t *testing.T, what string, matches func(entry) bool) entry {
	t.Helper()
	timeout := time.After(patience)
	for {
		l.mu.Lock()
		for _, e := range l.entries {
			if matches(e) {
				l.mu.Unlock()
				return e
			}
		}
		news := l.news
		l.mu.Unlock()
		select {
		case <-news:
		case <-timeout:
			t.Fatalf("it was not told within %v that %s", patience, what)
		}
	}
}

// leaderAfter returns who first leads after the time at.
func (l *logbook) leaderAfter(t *testing.T, at int64) entry {
	t.Helper()
	return l.await(t, "another leads", func(e entry) bool { return e.What == "leading" && e.At > at })
}

// process is a candidate as the test sees it.
type process struct {
	t      *testing.T
	id     string
	log    *logbook
	cmd    *exec.Cmd
	in     io.Closer
	stderr bytes.Buffer
	exited chan struct{}
}

func spawn(t *testing.T, pl plan, log *logbook) *process {
	t.Helper()
	line, err := json.Marshal(pl)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, id: pl.ID, log: log, exited: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), planVariable+"="+string(line))
	p.cmd.Stderr = &p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(out)
	t.Cleanup(p.end)
	return p
}

func (p *process) read(out io.Reader) {
	defer close(p.exited)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			p.log.add(entry{e, p})
		}
	}
	_ = p.cmd.Wait()
}

// end is what the test's cleanup does.
func (p *process) end() {
	p.kill()
	if races := races(p.stderr.String()); races > 0 {
		p.t.Errorf("%s: %d data races", p.id, races)
	}
	if p.t.Failed() {
		p.t.Logf("%s wrote:\n%s", p.id, p.stderr.String())
	}
}

// races counts the data races that a log tells of, but for one of controller-runtime's own: a manager that stops for
// another reason at the moment at which its elector stops leading reads a timeout that the elector's callback sets.
func races(log string) (n int) {
	for _, report := range strings.Split(log, "==================") {
		upstream := strings.Contains(report, "controllerManager).engageStopProcedure(") &&
			strings.Contains(report, "controllerManager).initLeaderElector.")
		if strings.Contains(report, "WARNING: DATA RACE") && !upstream {
			n++
		}
	}
	return n
}

// kill ends the process with SIGKILL, and returns once it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // or it has exited already
	<-p.exited
	_ = p.in.Close()
}

// terminate asks the process to end, and returns when it did that.
func (p *process) terminate() (at int64) {
	p.t.Helper()
	p.await("ready")
	at = now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return at
}

func (p *process) awaitExit() entry {
	p.t.Helper()
	e := p.await("exit")
	<-p.exited
	if e.Leaks != "" {
		p.t.Errorf("%s left goroutines:\n%s", p.id, e.Leaks)
	}
	return e
}

// await returns when the process first told what.
func (p *process) await(what string) entry {
	p.t.Helper()
	return p.log.await(p.t, p.id+": "+what, func(e entry) bool { return e.by == p && e.What == what })
}

// epoch returns that under which the process leads.
func (p *process) epoch() uint64 { return p.await("leading").Epoch }
