package apiclient

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// mirror passes what a reflector sees on, without keeping a second copy of it. A
// list arrives as one piece, so that it is never taken for a series of changes.
type mirror[T metav1.Object] struct {
	replace func([]T)
	set     func(T)
	remove  func(T)
	log     logr.Logger // with the name of the resource
}

// taken logs what was just passed on: an agent that does not act may not know.
func (m *mirror[T]) taken(event string, object T) {
	if log := m.log.V(4); log.Enabled() { // there are many
		log.Info("Taken from the API", "event", event, "name", object.GetName(), "resourceVersion", object.GetResourceVersion())
	}
}

// Add implements cache.ReflectorStore.
func (m *mirror[T]) Add(object any) error { return m.Update(object) }

// Update implements cache.ReflectorStore.
func (m *mirror[T]) Update(object any) error {
	o, err := stripped[T](object)
	if err == nil {
		m.set(o)
		m.taken("changed", o)
	}
	return err
}

// Delete implements cache.ReflectorStore. The object is its last state.
func (m *mirror[T]) Delete(object any) error {
	o, err := stripped[T](object)
	if err == nil {
		m.remove(o)
		m.taken("deleted", o)
	}
	return err
}

// Replace implements cache.ReflectorStore.
func (m *mirror[T]) Replace(list []any, _ string) error {
	objects := make([]T, 0, len(list))
	for _, object := range list {
		o, err := stripped[T](object)
		if err != nil {
			return err
		}
		objects = append(objects, o)
	}
	m.replace(objects)
	for _, o := range objects {
		m.taken("listed", o)
	}
	m.log.V(4).Info("Taken a whole list from the API", "objects", len(objects))
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do.
func (*mirror[T]) Resync() error { return nil }

// Transformer lets the reflector strip objects as they come, before it has
// gathered a whole list.
func (*mirror[T]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return stripped[T](object) }
}

// stripped returns the object without what the agent never reads: it keeps
// all of them in memory.
func stripped[T metav1.Object](object any) (T, error) {
	o, ok := object.(T)
	if !ok {
		return o, fmt.Errorf("watched object is a %T", object)
	}
	o.SetManagedFields(nil)
	// kubectl apply leaves a second copy of the whole object here.
	delete(o.GetAnnotations(), "kubectl.kubernetes.io/last-applied-configuration")
	return o, nil
}

// watcher watches one resource and says when that fails.
type watcher struct {
	client   *Client
	resource string
	name     string // of the only object; empty: all
	example  runtime.Object
	list     func() runtime.Object
	store    cache.ReflectorStore
	errors   *Errors
}

// run watches until ctx is done.
func (w *watcher) run(ctx context.Context) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := w.list()
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
	// The reflector itself backs off between watches that cannot connect. Its
	// default grows to a minute, for which rules would be stale after an outage.
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 8 * time.Second}
	reflector := cache.NewReflectorWithOptions(lw, w.example, w.store, cache.ReflectorOptions{Name: w.resource, Backoff: &backoff})
	// Not reflector.RunWithContext, which logs every failure in its own way.
	_ = backoff.DelayWithReset(w.errors.clock, time.Minute).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			w.errors.log.V(2).Info("A watch has ended; starting it again", "resource", w.resource, "err", err.Error())
		}
		return false, nil
	}) // ends only with ctx
}

// narrow restricts a request to the only object that is watched.
func (w *watcher) narrow(options *metav1.ListOptions) *metav1.ListOptions {
	if w.name != "" {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", w.name).String()
	}
	return options
}

// What the agent watches.
const (
	ResourceServices = "serviceproxyrules"
	resourceProxies  = "nodeproxies"
	resourceNodes    = "nodeproxyrules"
)

// Receiver takes what the API shows of the three kinds that the agent watches.
type Receiver interface {
	// SetServices takes a complete list of ServiceProxyRules.
	SetServices([]*v1alpha1.ServiceProxyRules)
	SetService(*v1alpha1.ServiceProxyRules)
	// DeleteService takes the last state of an object that is gone.
	DeleteService(*v1alpha1.ServiceProxyRules)
	// SetProxy takes the NodeProxy; nil: there is none. DeleteProxy takes its last
	// state.
	SetProxy(*v1alpha1.NodeProxy)
	DeleteProxy(*v1alpha1.NodeProxy)
	// SetRules takes the node's own NodeProxyRules, MissRules that there is none.
	SetRules(*v1alpha1.NodeProxyRules)
	MissRules()
}

// Watch watches all ServiceProxyRules, the NodeProxy and the NodeProxyRules of a
// node until ctx is done, and calls changed after every event.
func (c *Client) Watch(ctx context.Context, node string, to Receiver, changed func(), problems *Errors) {
	log := func(resource string) logr.Logger { return problems.log.WithValues("resource", resource) }
	services := &mirror[*v1alpha1.ServiceProxyRules]{
		log:     log(ResourceServices),
		replace: func(list []*v1alpha1.ServiceProxyRules) { to.SetServices(list); changed() },
		set:     func(o *v1alpha1.ServiceProxyRules) { to.SetService(o); changed() },
		remove:  func(o *v1alpha1.ServiceProxyRules) { to.DeleteService(o); changed() },
	}
	proxies := &mirror[*v1alpha1.NodeProxy]{
		log: log(resourceProxies),
		replace: func(list []*v1alpha1.NodeProxy) {
			if len(list) == 0 {
				to.SetProxy(nil)
			}
			for _, o := range list {
				to.SetProxy(o)
			}
			changed()
		},
		set:    func(o *v1alpha1.NodeProxy) { to.SetProxy(o); changed() },
		remove: func(o *v1alpha1.NodeProxy) { to.DeleteProxy(o); changed() },
	}
	own := &mirror[*v1alpha1.NodeProxyRules]{
		log: log(resourceNodes),
		replace: func(list []*v1alpha1.NodeProxyRules) {
			if len(list) == 0 {
				to.MissRules()
			}
			for _, o := range list {
				to.SetRules(o)
			}
			changed()
		},
		set:    func(o *v1alpha1.NodeProxyRules) { to.SetRules(o); changed() },
		remove: func(*v1alpha1.NodeProxyRules) { to.MissRules(); changed() },
	}
	var wg sync.WaitGroup
	for _, w := range []*watcher{
		{resource: ResourceServices, example: &v1alpha1.ServiceProxyRules{},
			list: func() runtime.Object { return &v1alpha1.ServiceProxyRulesList{} }, store: services},
		{resource: resourceProxies, name: v1alpha1.NodeProxyName, example: &v1alpha1.NodeProxy{},
			list: func() runtime.Object { return &v1alpha1.NodeProxyList{} }, store: proxies},
		{resource: resourceNodes, name: node, example: &v1alpha1.NodeProxyRules{},
			list: func() runtime.Object { return &v1alpha1.NodeProxyRulesList{} }, store: own},
	} {
		w.client, w.errors = c, problems
		wg.Go(func() { w.run(ctx) })
	}
	wg.Wait()
}
