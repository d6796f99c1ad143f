package controllers

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/informers"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
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
		NewInformer:                  informers.New(clock.RealClock{}),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Service{}: {
				Label:     labels.NewSelector().Add(*proxied),
				Field:     fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone),
				Transform: trimService,
			},
			&discoveryv1.EndpointSlice{}: {
				Label:     labels.NewSelector().Add(*notHeadless),
				Transform: trimSlice,
			},
			&corev1.Node{}:                 {Transform: trimNode},
			&corev1.Namespace{}:            {Transform: trimNamespace},
			&v1alpha1.NodeProxyPolicy{}:    {Transform: trimPolicy},
			&v1alpha1.ServiceProxyPolicy{}: {Transform: trimPolicy},
			&appsv1.DaemonSet{}: {Namespaces: map[string]cache.Config{
				namespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, agentdeploy.Name)},
			}},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
				namespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, agentdeploy.APIServersName)},
			}},
			&corev1.Pod{}: {Transform: trimPod, Namespaces: map[string]cache.Config{
				namespace: {LabelSelector: labels.SelectorFromSet(labels.Set{agentdeploy.LabelName: agentdeploy.Name})},
			}},
		},
	}, nil
}

// trimMeta drops what no reconciler reads.
func trimMeta(m *metav1.ObjectMeta) {
	m.ManagedFields = nil
	m.OwnerReferences = nil
	m.Finalizers = nil
	m.Annotations = nil
}

func trimService(in any) (any, error) {
	if svc, ok := in.(*corev1.Service); ok {
		trimMeta(&svc.ObjectMeta)
		svc.Status.Conditions = nil
	}
	return in, nil
}

func trimSlice(in any) (any, error) {
	slice, ok := in.(*discoveryv1.EndpointSlice)
	if !ok {
		return in, nil
	}
	changed, has := slice.Annotations[corev1.EndpointsLastChangeTriggerTime]
	trimMeta(&slice.ObjectMeta)
	if has {
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: changed}
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		e.Hostname, e.TargetRef, e.Zone, e.DeprecatedTopology = nil, nil, nil, nil
	}
	return in, nil
}

func trimNamespace(in any) (any, error) {
	if namespace, ok := in.(*corev1.Namespace); ok {
		trimMeta(&namespace.ObjectMeta)
		namespace.Spec, namespace.Status = corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
	}
	return in, nil
}

func trimNode(in any) (any, error) {
	if node, ok := in.(*corev1.Node); ok {
		trimMeta(&node.ObjectMeta)
		node.Status = corev1.NodeStatus{
			Addresses: node.Status.Addresses,
			NodeInfo:  corev1.NodeSystemInfo{OperatingSystem: node.Status.NodeInfo.OperatingSystem},
		}
	}
	return in, nil
}

// trimPolicy drops notes on a policy, such as what kubectl applied last.
func trimPolicy(in any) (any, error) {
	switch policy := in.(type) {
	case *v1alpha1.NodeProxyPolicy:
		trimMeta(&policy.ObjectMeta)
	case *v1alpha1.ServiceProxyPolicy:
		trimMeta(&policy.ObjectMeta)
	}
	return in, nil
}

// trimPod retains what shows the state of an agent: there is one on every node.
func trimPod(in any) (any, error) {
	if pod, ok := in.(*corev1.Pod); ok {
		trimMeta(&pod.ObjectMeta)
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, Affinity: pod.Spec.Affinity}
		pod.Status = corev1.PodStatus{
			Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message,
			Conditions: pod.Status.Conditions, ContainerStatuses: pod.Status.ContainerStatuses,
		}
	}
	return in, nil
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
