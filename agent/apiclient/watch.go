package apiclient

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// What the agent watches.
const (
	resourceServices = "serviceproxyrules"
	resourceProxies  = "nodeproxies"
	resourceNodes    = "nodeproxyrules"
)

// watcher watches one resource and passes on its objects, without storing a second copy of them. A
// list is passed on as a whole, so that it is never mistaken for a series of changes.
type watcher[T metav1.Object] struct {
	client   *Client
	errors   *Errors
	changed  func() // called after every event
	resource string
	name     string // of the only object; empty: all
	example  runtime.Object
	list     runtime.Object // an empty one
	replace  func([]T)
	set      func(T)
	remove   func(T)
}

// run watches until ctx is done.
func (w *watcher[T]) run(ctx context.Context) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := w.list.DeepCopyObject()
			err := w.client.rest.Get().Resource(w.resource).
				VersionedParams(w.narrow(&options), w.client.params).Do(ctx).Into(list)
			if err != nil {
				w.errors.Failed(ctx, w.resource, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			started, err := w.client.rest.Get().Resource(w.resource).
				VersionedParams(w.narrow(&options), w.client.params).Watch(ctx)
			if err != nil {
				w.errors.Failed(ctx, w.resource, err)
				return nil, err
			}
			w.errors.Watching(w.resource)
			return started, nil
		},
	}
	// The reflector itself backs off between watches that cannot connect. By default up to a
	// minute, during which rules would be stale after an outage.
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 8 * time.Second}
	reflector := cache.NewReflectorWithOptions(lister{lw}, w.example, w, cache.ReflectorOptions{Name: w.resource, Backoff: &backoff})
	// Not reflector.RunWithContext, which logs every failure in its own way.
	_ = backoff.DelayWithReset(w.errors.clock, time.Minute).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			w.errors.log.V(2).Info("A watch has ended; restarting it", "resource", w.resource, "err", err.Error())
		}
		return false, nil
	}) // ends only with ctx
}

// lister makes the reflector list with GET, which the API server compresses. It does not compress a watch
// that begins with all objects: 5,000 agents that start together would make it send 84 GB.
type lister struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what the reflector asks for.
func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// narrow restricts a request to the only object.
func (w *watcher[T]) narrow(options *metav1.ListOptions) *metav1.ListOptions {
	if w.name != "" {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", w.name).String()
	}
	return options
}

// Add implements cache.ReflectorStore.
func (w *watcher[T]) Add(object any) error { return w.Update(object) }

// Update implements cache.ReflectorStore.
func (w *watcher[T]) Update(object any) error { return w.pass(object, "changed", w.set) }

// Delete implements cache.ReflectorStore. The object is its last state.
func (w *watcher[T]) Delete(object any) error { return w.pass(object, "deleted", w.remove) }

// pass passes an object on.
func (w *watcher[T]) pass(object any, event string, to func(T)) error {
	o, err := stripped[T](object)
	if err != nil {
		return err
	}
	to(o)
	w.changed()
	w.logReceived(event, o)
	return nil
}

// logReceived logs what may explain why an agent does not act.
func (w *watcher[T]) logReceived(event string, o T) {
	if log := w.errors.log.V(4); log.Enabled() { // there are many
		log.Info("Received an object", "resource", w.resource, "event", event, "name", o.GetName(), "resourceVersion", o.GetResourceVersion())
	}
}

// Replace implements cache.ReflectorStore.
func (w *watcher[T]) Replace(list []any, _ string) error {
	objects := make([]T, 0, len(list))
	for _, object := range list {
		o, err := stripped[T](object)
		if err != nil {
			return err
		}
		objects = append(objects, o)
	}
	w.replace(objects)
	w.changed()
	for _, o := range objects {
		w.logReceived("listed", o)
	}
	w.errors.log.V(4).Info("Received a list", "resource", w.resource, "objects", len(objects))
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do.
func (*watcher[T]) Resync() error { return nil }

// Transformer makes the reflector strip objects as they arrive, before it has a whole list.
func (*watcher[T]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return stripped[T](object) }
}

// stripped returns the object without what the agent never reads, because all objects stay in
// memory.
func stripped[T metav1.Object](object any) (T, error) {
	o, ok := object.(T)
	if !ok {
		return o, fmt.Errorf("watched object is a %T", object)
	}
	o.SetManagedFields(nil)
	// kubectl apply stores a second copy of the whole object here.
	delete(o.GetAnnotations(), "kubectl.kubernetes.io/last-applied-configuration")
	return o, nil
}

// Receiver takes the objects of the three watched kinds.
type Receiver interface {
	// SetServices takes a complete list of ServiceProxyRules.
	SetServices([]*v1alpha1.ServiceProxyRules)
	SetService(*v1alpha1.ServiceProxyRules)
	// DeleteService takes the last state of a deleted object.
	DeleteService(*v1alpha1.ServiceProxyRules)
	// SetProxy takes the NodeProxy; nil: there is none. DeleteProxy takes its last state.
	SetProxy(*v1alpha1.NodeProxy)
	DeleteProxy(*v1alpha1.NodeProxy)
	// SetRules takes the node's own NodeProxyRules. MissRules: there is none.
	SetRules(*v1alpha1.NodeProxyRules)
	MissRules()
}

// Watch watches all ServiceProxyRules, the NodeProxy and the NodeProxyRules of a node until ctx is
// done, and calls changed after every event.
func (c *Client) Watch(ctx context.Context, node string, to Receiver, changed func(), problems *Errors) {
	services := &watcher[*v1alpha1.ServiceProxyRules]{
		client: c, errors: problems, changed: changed, resource: resourceServices,
		example: &v1alpha1.ServiceProxyRules{}, list: &v1alpha1.ServiceProxyRulesList{},
		replace: to.SetServices, set: to.SetService, remove: to.DeleteService,
	}
	proxy := &watcher[*v1alpha1.NodeProxy]{
		client: c, errors: problems, changed: changed, resource: resourceProxies, name: v1alpha1.NodeProxyName,
		example: &v1alpha1.NodeProxy{}, list: &v1alpha1.NodeProxyList{},
		replace: one(to.SetProxy, func() { to.SetProxy(nil) }), set: to.SetProxy, remove: to.DeleteProxy,
	}
	own := &watcher[*v1alpha1.NodeProxyRules]{
		client: c, errors: problems, changed: changed, resource: resourceNodes, name: node,
		example: &v1alpha1.NodeProxyRules{}, list: &v1alpha1.NodeProxyRulesList{},
		replace: one(to.SetRules, to.MissRules), set: to.SetRules, remove: func(*v1alpha1.NodeProxyRules) { to.MissRules() },
	}
	var wg sync.WaitGroup
	wg.Go(func() { services.run(ctx) })
	wg.Go(func() { proxy.run(ctx) })
	wg.Go(func() { own.run(ctx) })
	wg.Wait()
}

// one passes on a list of at most one object.
func one[T any](set func(T), miss func()) func([]T) {
	return func(list []T) {
		if len(list) == 0 {
			miss()
		}
		for _, o := range list {
			set(o)
		}
	}
}
