package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// CacheOptions returns what the manager's cache watches and stores. Objects of the agents are those
// in a namespace. The cache returns objects uncopied: copy one before you change it.
func CacheOptions(namespace string) (cache.Options, error) {
	proxied, err := labels.NewRequirement(render.LabelServiceProxyName, selection.DoesNotExist, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("build Service selector: %w", err)
	}
	notHeadless, err := labels.NewRequirement(corev1.IsHeadlessService, selection.DoesNotExist, nil)
	if err != nil {
		return cache.Options{}, fmt.Errorf("build EndpointSlice selector: %w", err)
	}
	return cache.Options{
		DefaultTransform:             cache.TransformStripManagedFields(),
		DefaultUnsafeDisableDeepCopy: new(true),
		NewInformer:                  watches.NewInformer(clock.RealClock{}),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Service{}: {
				Label:     labels.NewSelector().Add(*proxied),
				Field:     fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone),
				Transform: trimmed(func(svc *corev1.Service) { svc.Status.Conditions = nil }),
			},
			&discoveryv1.EndpointSlice{}: {
				Label:     labels.NewSelector().Add(*notHeadless),
				Transform: trimmed(trimSlice),
			},
			&corev1.Node{}:                 {Transform: trimmed(trimNode)},
			&corev1.Namespace{}:            {Transform: trimmed(func(n *corev1.Namespace) { n.Spec, n.Status = corev1.NamespaceSpec{}, corev1.NamespaceStatus{} })},
			&v1alpha1.NodeProxyPolicy{}:    {Transform: trimmed(func(*v1alpha1.NodeProxyPolicy) {})},
			&v1alpha1.ServiceProxyPolicy{}: {Transform: trimmed(func(*v1alpha1.ServiceProxyPolicy) {})},
			&appsv1.DaemonSet{}: {Namespaces: map[string]cache.Config{
				namespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, agentdeploy.Name)},
			}},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
				namespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, agentdeploy.APIServersName)},
			}},
			&corev1.Pod{}: {Transform: trimmed(trimPod), Namespaces: map[string]cache.Config{
				namespace: {LabelSelector: labels.SelectorFromSet(labels.Set{agentdeploy.LabelName: agentdeploy.Name})},
			}},
		},
	}, nil
}

// trimmed returns a transform that drops metadata that no reconciler reads, and what else trim drops.
func trimmed[T client.Object](trim func(T)) toolscache.TransformFunc {
	return func(in any) (any, error) {
		o, ok := in.(T)
		if !ok {
			return in, nil
		}
		changed, has := o.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime]
		o.SetManagedFields(nil)
		o.SetOwnerReferences(nil)
		o.SetFinalizers(nil)
		o.SetAnnotations(nil)
		if has {
			o.SetAnnotations(map[string]string{corev1.EndpointsLastChangeTriggerTime: changed})
		}
		trim(o)
		return in, nil
	}
}

// trimSlice also has endpoints share what is equal, because there are many.
func trimSlice(slice *discoveryv1.EndpointSlice) {
	yes, no := true, false
	nodes := map[string]*string{}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if len(e.Addresses) > 0 {
			e.Addresses = []string{strings.Clone(e.Addresses[0])} // the others are ignored
		}
		e.Hostname, e.TargetRef, e.Zone, e.DeprecatedTopology = nil, nil, nil, nil
		for _, condition := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
			switch {
			case *condition == nil:
			case **condition:
				*condition = &yes
			default:
				*condition = &no
			}
		}
		if e.NodeName == nil {
			continue
		}
		if known, exists := nodes[*e.NodeName]; exists {
			e.NodeName = known
		} else {
			nodes[*e.NodeName] = e.NodeName
		}
	}
	slice.Endpoints = slices.Clone(slice.Endpoints) // decoding leaves spare capacity, up to as much again
}

func trimNode(node *corev1.Node) {
	node.Status = corev1.NodeStatus{
		Addresses: node.Status.Addresses,
		NodeInfo:  corev1.NodeSystemInfo{OperatingSystem: node.Status.NodeInfo.OperatingSystem},
	}
}

// trimPod retains what shows the state of an agent: there is one on every node.
func trimPod(pod *corev1.Pod) {
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, Affinity: pod.Spec.Affinity}
	pod.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message,
		Conditions: pod.Status.Conditions, ContainerStatuses: pod.Status.ContainerStatuses,
	}
}

// NewCache makes the cache of a manager that is started with the context work. When that ends, waiting
// for the cache ends too: the manager of controller-runtime 0.24 would wait for its cache to fill
// before it stops, even if the API server does not answer (#3440 there).
func NewCache(work context.Context) cache.NewCacheFunc {
	return func(config *rest.Config, o cache.Options) (cache.Cache, error) {
		c, err := cache.New(config, o)
		if err != nil {
			return nil, err
		}
		return interruptible{c, work}, nil
	}
}

type interruptible struct {
	cache.Cache
	work context.Context //nolint:containedctx // the manager has no other way to pass it
}

// WaitForCacheSync implements cache.Informers.
func (c interruptible) WaitForCacheSync(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.work, cancel)()
	return c.Cache.WaitForCacheSync(ctx) || c.work.Err() != nil
}
