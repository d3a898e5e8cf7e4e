package main

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/ndyakov/go-redlock/resourcelock"
)

const (
	managedLabel    = "redlock.example/managed"
	epochAnnotation = "redlock.example/epoch"
)

// reconciler stamps ConfigMaps with the epoch of the leader that saw them last.
type reconciler struct {
	client.Client
	lock *resourcelock.Lock
}

func addReconciler(mgr ctrl.Manager, lock *resourcelock.Lock) error {
	managed := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[managedLabel] == "true" })
	return ctrl.NewControllerManagedBy(mgr).
		For(&corev1.ConfigMap{}).
		WithEventFilter(managed).
		Complete(&reconciler{mgr.GetClient(), lock})
}

// Reconcile stamps one ConfigMap. The update carries the resource version that was read: an object that somebody has
// changed since is not written, and one that bears a higher epoch is another leader's.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	epoch := r.lock.Epoch()
	if epoch == 0 {
		return ctrl.Result{}, nil // Redlock, or the term is over: there is no epoch to stamp
	}
	var cm corev1.ConfigMap
	if err := r.Get(ctx, req.NamespacedName, &cm); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	stamped, err := stampOf(&cm)
	if err != nil {
		return ctrl.Result{}, err
	}
	switch {
	case stamped == epoch:
		return ctrl.Result{}, nil
	case stamped > epoch:
		return ctrl.Result{}, fmt.Errorf("%s bears epoch %d, this leader has %d: it is not the leader any more", req, stamped, epoch)
	}
	if cm.Annotations == nil {
		cm.Annotations = make(map[string]string)
	}
	cm.Annotations[epochAnnotation] = strconv.FormatUint(epoch, 10)
	return ctrl.Result{}, r.Update(ctx, &cm)
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
