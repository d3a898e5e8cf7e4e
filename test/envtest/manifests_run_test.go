//go:build envtest

package envtest

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// What the manifests start does its work with what the manifests allow: it elects, reconciles, hands over when asked to
// end, and what a leader of old writes after all is refused.
func TestManifestsRun(t *testing.T) {
	t.Parallel()
	binary := buildController(t)
	inOverlays(t, func(t *testing.T, all manifests, _ int) {
		d := deploy(t, all, binary)
		for range 3 {
			d.start()
		}
		first := d.term(1)
		cm := fencedObject(d.namespace, "cm", "")
		if err := d.api.Create(t.Context(), cm); err != nil {
			t.Fatal(err)
		}
		d.awaitStamp(cm, first.Epoch)
		for _, path := range []string{"/healthz", "/readyz"} {
			eventually(t, path+" is fine", func() bool { return first.by.ready(path) })
		}

		first.by.signal(syscall.SIGTERM)
		if code := first.by.exitCode(20 * time.Second); code != 0 {
			t.Errorf("the first leader ended with %d", code)
		}
		second := d.term(2)
		d.awaitStamp(cm, second.Epoch)

		d.start() // in the place of the first
		second.by.signal(syscall.SIGSTOP)
		third := d.term(3)
		d.awaitStamp(cm, third.Epoch)
		time.Sleep(3 * time.Second) // the pause has lasted for two LeaseDurations
		second.by.signal(syscall.SIGCONT)
		if code := second.by.exitCode(20 * time.Second); code == 0 {
			t.Error("the second leader, which was paused, ended as if nothing had happened")
		}
		if !(first.Epoch < second.Epoch && second.Epoch < third.Epoch) {
			t.Errorf("the epochs were %d, %d and %d", first.Epoch, second.Epoch, third.Epoch)
		}

		// Had it been paused just after its last look at the lease, this would be next: it has read afresh.
		d.awaitStamp(cm, third.Epoch)
		checkRefused(t, writes["update"](t.Context(), d.api, cm, strconv.FormatUint(second.Epoch, 10)), "is stale")
		d.checkRights()
	})
}

func buildController(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "controller")
	if out, err := exec.Command(goCommand(), "build", "-race", "-o", binary, "../../examples/controller").CombinedOutput(); err != nil {
		t.Fatalf("building the controller: %v\n%s", err, out)
	}
	return binary
}

// checkRights reports what Redis has refused its user. (CLIENT SETINFO, with which the client introduces itself, is not needed.)
func (d *deployment) checkRights() {
	d.t.Helper()
	for _, s := range d.redis {
		log, err := s.Client().ACLLog(d.t.Context(), 100).Result()
		if err != nil {
			d.t.Fatal(err)
		}
		for _, e := range log {
			if !strings.HasPrefix(e.Object, "client") {
				d.t.Errorf("Redis refused %s: %s %s", e.Username, e.Reason, e.Object)
			}
		}
		// Another user can do nothing with the lease, and this one nothing else.
		elector := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: d.user, Password: d.password})
		if err := elector.Set(d.t.Context(), "other", "1", 0).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			d.t.Errorf("the user may write another key: %v", err)
		}
		_ = elector.Close()
	}
}
