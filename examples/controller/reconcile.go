package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/ndyakov/go-redlock/resourcelock"
)

const (
	managedLabel    = "redlock.example/managed"
	epochAnnotation = "redlock.example/epoch"
)

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

// leader is what the reconciler needs to know of its lease.
type leader interface{ Epoch() uint64 }

// reconciler stamps ConfigMaps with the epoch of the leader that saw them last.
type reconciler struct {
	client.Client
	leader leader
}

func addReconciler(mgr ctrl.Manager, lock *resourcelock.Lock, cluster, epochs bool) error {
	if !cluster {
		return nil
	}
	if !epochs {
		ctrl.Log.Info("ConfigMaps are not reconciled: with Redlock there is no epoch to stamp them with")
		return nil
	}
	return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(&reconciler{mgr.GetClient(), lock})
}

// Reconcile stamps one ConfigMap. The update carries the resource version that was read: an object that somebody has
// changed since is not written, and one that bears a higher epoch is another leader's.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var cm corev1.ConfigMap
	if err := r.Get(ctx, req.NamespacedName, &cm); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	changed, err := stamp(&cm, r.leader.Epoch())
	if err != nil || !changed {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.Update(ctx, &cm)
}

// stamp puts the epoch on a ConfigMap, and reports whether it had another one. It never lowers one.
func stamp(cm *corev1.ConfigMap, epoch uint64) (changed bool, err error) {
	stamped, err := stampOf(cm)
	switch {
	case err != nil:
		return false, reconcile.TerminalError(err)
	case epoch == 0:
		return false, errors.New("the lease is lost")
	case stamped == epoch:
		return false, nil
	case stamped > epoch:
		return false, reconcile.TerminalError(fmt.Errorf("%s/%s bears epoch %d, and this leader has %d: it is not the leader any more",
			cm.Namespace, cm.Name, stamped, epoch))
	}
	if cm.Annotations == nil {
		cm.Annotations = make(map[string]string)
	}
	cm.Annotations[epochAnnotation] = strconv.FormatUint(epoch, 10)
	return true, nil
}

func stampOf(cm *corev1.ConfigMap) (uint64, error) {
	s := cm.Annotations[epochAnnotation]
	if s == "" {
		return 0, nil
	}
	stamped, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("annotation %s of %s/%s is %q: not an epoch", epochAnnotation, cm.Namespace, cm.Name, s)
	}
	return stamped, nil
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
		if stamped, err := stampOf(&cms[i]); err == nil { // no stamp of ours is no floor either
			highest = max(highest, stamped)
		}
	}
	return highest
}
