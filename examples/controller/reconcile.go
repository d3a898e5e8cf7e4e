package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/ndyakov/go-redlock/examples/controller/fenced"
	"github.com/ndyakov/go-redlock/resourcelock"
)

const managedLabel = "redlock.example/managed"

var managed = labels.SelectorFromSet(labels.Set{managedLabel: "true"})

// cluster returns where the ConfigMaps are, nil without a cluster. The demo takes one only from a flag: a KUBECONFIG
// that happens to be set is no wish to have a demo write there.
func (o options) cluster() (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: o.kubeconfig}
	switch {
	case o.inCluster:
		return rest.InClusterConfig()
	case o.kubeconfig != "":
	case os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" && os.Getenv(fromDemo) == "":
		rules = clientcmd.NewDefaultClientConfigLoadingRules()
	default:
		return nil, nil
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
}

// cacheOptions keep ConfigMaps that are none of our business out of the process.
func (o options) cacheOptions() cache.Options {
	opts := cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Label: managed}}}
	if o.watch != "" {
		opts.DefaultNamespaces = map[string]cache.Config{o.watch: {}}
	}
	return opts
}

// reconciler has ConfigMaps bear the epoch of the current leader: a stand-in for any writes of a controller.
type reconciler struct{ *fenced.Client }

func addReconciler(mgr ctrl.Manager, lock *resourcelock.Lock) error {
	term := func(context.Context) (uint64, bool) {
		epoch := lock.Epoch()
		return epoch, epoch != 0
	}
	return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(&reconciler{fenced.New(mgr.GetClient(), term)})
}

// Reconcile writes one ConfigMap, if another term wrote it last. The update carries the resource version that was read, so that
// an object that somebody has changed since is not written; and the epoch, so that a leader of old writes none.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cm corev1.ConfigMap
	if err := r.Get(ctx, req.NamespacedName, &cm); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	stamped, err := fenced.EpochOf(&cm)
	if err != nil {
		return ctrl.Result{}, reconcile.TerminalError(err)
	}
	epoch, err := r.Term(ctx)
	if err != nil || stamped == epoch {
		return ctrl.Result{}, err
	}
	err = r.Update(ctx, &cm)
	if errors.Is(err, fenced.ErrStale) {
		return ctrl.Result{}, reconcile.TerminalError(err)
	}
	return ctrl.Result{}, err
}

// stamps are the epochs that ConfigMaps bear.
type stamps struct {
	api       client.Reader
	namespace string
}

func newStamps(cluster *rest.Config, namespace string) (*stamps, error) {
	api, err := client.New(cluster, client.Options{})
	return &stamps{api, namespace}, err
}

// floor is the highest of them. A Redis that was emptied counts from 1 again: without a floor no new leader could
// stamp anything.
func (s *stamps) floor(ctx context.Context) (uint64, error) {
	var all corev1.ConfigMapList
	err := s.api.List(ctx, &all, client.InNamespace(s.namespace), client.MatchingLabelsSelector{Selector: managed})
	if err != nil {
		return 0, fmt.Errorf("reading the epochs of ConfigMaps: %w", err)
	}
	return highestStamp(all.Items), nil
}

func highestStamp(cms []corev1.ConfigMap) (highest uint64) {
	for i := range cms {
		if stamped, err := fenced.EpochOf(&cms[i]); err == nil { // no stamp of ours is no floor either
			highest = max(highest, stamped)
		}
	}
	return highest
}
