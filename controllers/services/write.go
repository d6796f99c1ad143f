package services

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
)

// sameRules reports whether a write would change nothing that matters. The time of the last change
// alone is no reason to write.
func sameRules(stored, want *v1alpha1.ServiceProxyRules) bool {
	return maps.Equal(labels.Merge(stored.Labels, want.Labels), stored.Labels) &&
		stored.Annotations[v1alpha1.AnnotationOverrides] == want.Annotations[v1alpha1.AnnotationOverrides] &&
		equality.Semantic.DeepEqual(stored.Spec, want.Spec)
}

// write creates or updates the rules. It preserves other labels and annotations.
func (r *Reconciler) write(ctx context.Context, want, stored *v1alpha1.ServiceProxyRules) error {
	logger := log.FromContext(ctx).V(2)
	if stored == nil {
		if err := r.Client.Create(ctx, want); err != nil {
			return fmt.Errorf("%w ServiceProxyRules %s: %w", retry.ErrCreate, want.Name, err)
		}
		r.Metrics.Wrote(metrics.KindService, metrics.OpCreate)
		logger.Info("Created rules", "serviceProxyRules", klog.KObj(want))
		return nil
	}
	next := &v1alpha1.ServiceProxyRules{ObjectMeta: *stored.ObjectMeta.DeepCopy(), Spec: want.Spec}
	next.Labels = labels.Merge(next.Labels, want.Labels)
	delete(next.Annotations, v1alpha1.AnnotationLastChangeTriggerTime)
	delete(next.Annotations, v1alpha1.AnnotationOverrides)
	next.Annotations = labels.Merge(next.Annotations, want.Annotations)
	if err := r.Client.Update(ctx, next); err != nil {
		return fmt.Errorf("update ServiceProxyRules %s: %w", want.Name, err)
	}
	r.Metrics.Wrote(metrics.KindService, metrics.OpUpdate)
	logger.Info("Updated rules", "serviceProxyRules", klog.KObj(next))
	return nil
}

// end marks rules as released and deletes them at once. The cache may be stale, and agents remove
// released rules, so the API server itself must confirm that the Service has ended. The
// preconditions preserve any change made meanwhile.
func (r *Reconciler) end(ctx context.Context, key types.NamespacedName, stored *v1alpha1.ServiceProxyRules) (ctrl.Result, error) {
	ended, err := r.endConfirmed(ctx, key)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !ended {
		return ctrl.Result{RequeueAfter: retry.Soon}, nil // the watch will bring the Service
	}
	if !stored.Spec.Released {
		stored = stored.DeepCopy()
		stored.Spec.Released = true
		if err := r.Client.Update(ctx, stored); err != nil {
			return retry.IgnoreRace(fmt.Errorf("release ServiceProxyRules %s: %w", stored.Name, err))
		}
		r.Metrics.Wrote(metrics.KindService, metrics.OpRelease)
	}
	r.Memory.released(key)
	if stored.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // waits for another finalizer
	}
	err = r.Client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion})
	if err != nil {
		return retry.IgnoreRace(fmt.Errorf("delete ServiceProxyRules %s: %w", stored.Name, err))
	}
	r.Metrics.Wrote(metrics.KindService, metrics.OpDelete)
	log.FromContext(ctx).V(2).Info("Released and deleted rules", "serviceProxyRules", klog.KObj(stored))
	return ctrl.Result{}, nil
}

// endConfirmed asks the API server whether a Service is deleted or not eligible.
func (r *Reconciler) endConfirmed(ctx context.Context, key types.NamespacedName) (bool, error) {
	if key.Namespace == "" { // stands for an object that no Service has
		return true, nil
	}
	svc, err := objects.Find[corev1.Service](ctx, r.Live, key)
	if err != nil {
		return false, fmt.Errorf("confirm that the Service has ended: %w", err)
	}
	return svc == nil || !render.Eligible(svc), nil
}
