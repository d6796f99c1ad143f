package watches

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

// OnlyNodeProxy enqueues the one NodeProxy, whatever changes.
func OnlyNodeProxy() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.NodeProxyName}}}
	})
}

// OfKubernetes passes the EndpointSlices of the API servers.
func OfKubernetes() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetNamespace() == metav1.NamespaceDefault && o.GetLabels()[discoveryv1.LabelServiceName] == objects.KubernetesService
	})
}

// Queue is the queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// SpecChanged passes the creation of NodeProxy, changes of its spec, and the end of a removal.
func SpecChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: predicate.GenerationChangedPredicate{}.Update, DeleteFunc: removalEnded}
}

// OnCreate passes the creation of NodeProxy, and the end of a removal.
func OnCreate() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return objects.BeingRemoved(e.ObjectOld.(*v1alpha1.NodeProxy)) && !objects.BeingRemoved(e.ObjectNew.(*v1alpha1.NodeProxy))
		},
		DeleteFunc: removalEnded,
	}
}

// removalEnded reports whether a removal of NodeProxy has ended. If it was interrupted, rendered
// objects still exist, and lack what has changed meanwhile.
func removalEnded(e event.DeleteEvent) bool {
	return objects.BeingRemoved(e.Object.(*v1alpha1.NodeProxy))
}

// Updated passes updates that change something, and all other events.
func Updated[T client.Object](changed func(before, after T) bool) predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return changed(e.ObjectOld.(T), e.ObjectNew.(T)) }}
}

// ComesOrGoes passes creations and deletions.
func ComesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
}
