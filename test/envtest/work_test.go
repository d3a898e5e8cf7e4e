//go:build envtest

package envtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// The witness is a Redis of its own, beside those that elect. Each leader enters when it begins to act and leaves
// when it has ended; the server does one thing after the other, so that two at once cannot escape it.
const (
	witnessLeader = "leader"     // who is in
	witnessFaults = "violations" // what must not have been
)

var (
	enterScript = redis.NewScript(`
		local leader = redis.call('GET', KEYS[1])
		if leader then
			redis.call('RPUSH', KEYS[2], ARGV[1] .. ' begins while ' .. leader .. ' leads')
			return 0
		end
		redis.call('SET', KEYS[1], ARGV[1])
		return 1`)
	actScript = redis.NewScript(`
		local leader = redis.call('GET', KEYS[1])
		if leader ~= ARGV[1] then
			redis.call('RPUSH', KEYS[2], ARGV[1] .. ' acts while ' .. tostring(leader) .. ' leads')
			return 0
		end
		return 1`)
	leaveScript = redis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('DEL', KEYS[1])`)
)

// turn is the time in which this process leads: all work is done within it.
type turn struct {
	id      string
	linger  time.Duration
	epoch   func() uint64
	witness *redis.Client

	began, ended  chan struct{}
	mu            sync.RWMutex // held by what is being done
	entered, over bool
}

func (t *turn) NeedLeaderElection() bool { return true }

// Start is called by the manager when it leads.
func (t *turn) Start(ctx context.Context) error {
	if entered, err := t.enter(); !entered {
		return err
	}
	defer close(t.ended)
	close(t.began)
	<-ctx.Done()
	time.Sleep(t.linger)
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	err := t.say(leaveScript)
	tell(event{What: "stopped leading"})
	return err
}

func (t *turn) say(s *redis.Script) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return s.Run(ctx, t.witness, []string{witnessLeader, witnessFaults}, t.id).Err()
}

func (t *turn) enter() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false, nil
	}
	e := event{What: "leading"}
	if t.epoch != nil {
		e.Epoch = t.epoch()
	}
	tell(e)
	if err := t.say(enterScript); err != nil {
		return false, err
	}
	t.entered = true
	return true, nil
}

// await returns once the work has ended; it does not begin any more.
func (t *turn) await() {
	t.mu.Lock()
	t.over = t.over || !t.entered
	entered := t.entered
	t.mu.Unlock()
	if entered {
		<-t.ended
	}
}

var errNotLeading = errors.New("the turn is over")

// act runs f within the turn.
func (t *turn) act(ctx context.Context, f func() error) error {
	select {
	case <-t.began:
	case <-ctx.Done():
		return ctx.Err()
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.over {
		return errNotLeading
	}
	if err := t.say(actScript); err != nil {
		return err
	}
	return f()
}

// worker is the controller: it signs each ConfigMap.
type worker struct {
	client client.Client
	turn   *turn
}

const (
	signature = "signed-by"
	epochKey  = "epoch"
)

func addWorker(mgr manager.Manager, t *turn) error {
	return ctrl.NewControllerManagedBy(mgr).Named("worker").For(&corev1.ConfigMap{}).
		Complete(&worker{mgr.GetClient(), t})
}

func (w *worker) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cm corev1.ConfigMap
	if err := w.client.Get(ctx, req.NamespacedName, &cm); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if cm.Data[signature] != "" {
		return ctrl.Result{}, nil
	}
	err := w.turn.act(ctx, func() error {
		cm.Data = map[string]string{signature: w.turn.id}
		if w.turn.epoch != nil {
			cm.Data[epochKey] = fmt.Sprint(w.turn.epoch())
		}
		return w.client.Update(ctx, &cm)
	})
	if apierrors.IsConflict(err) { // read from a cache that lags behind
		return ctrl.Result{RequeueAfter: 10 * time.Millisecond}, nil
	}
	return ctrl.Result{}, err
}
