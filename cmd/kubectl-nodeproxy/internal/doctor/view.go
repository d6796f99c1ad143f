package doctor

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// asked returns the Services to examine.
func (e *examination) asked() []*corev1.Service {
	var out []*corev1.Service
	for i := range e.Services {
		if svc := &e.Services[i]; e.concerns(named(svc)) {
			out = append(out, svc)
		}
	}
	return out
}

// concerns reports whether a Service is examined.
func (e *examination) concerns(service types.NamespacedName) bool {
	return e.Concerns(service.String())
}

// desired is what the controller renders from a Service now: with the overrides that it got
// before, and with those of the current policies, if these are readable.
func (e *examination) desired(svc *corev1.Service) (before, now *v1alpha1.ServiceProxyRules, problems []render.Problem) {
	key := named(svc)
	version, shape, in := v1alpha1.FormatVersion, render.Shape{}, render.Cluster{}
	stored := e.rules[key]
	if stored != nil {
		version, in = stored.Spec.FormatVersion, render.StoredCluster(&stored.Spec)
		if grant := policies.ReadOverrides(stored.Annotations[v1alpha1.AnnotationOverrides]); grant != nil {
			shape = render.Shape{Overrides: &grant.Overrides, Policies: stored.Spec.Policies}
		}
	}
	of := e.rendered(key)
	before, problems = render.Service(svc, of, shape, in, version)
	now = before
	if e.shapes != nil {
		r := e.shapes.Resolve(e.labels[svc.Namespace], svc.Labels)
		now, _ = render.Service(svc, of, render.Shape{Overrides: &r.Overrides, Policies: r.Policies}, in, version)
	}
	return before, now, problems
}

// rendered are the slices from which a Service is rendered.
func (e *examination) rendered(key types.NamespacedName) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, slice := range e.slices[key] {
		if _, ok := render.ServiceOf(slice); ok {
			out = append(out, slice)
		}
	}
	return out
}

// localEndpointsOn are the endpoints of one port of a Service that are on a node.
func (e *examination) localEndpointsOn(node *v1alpha1.NodeProxyRules, service types.NamespacedName, port v1alpha1.ServicePort) []string {
	if of := e.localByNode[node.Name][dataplane.ServiceName(service)]; of != nil {
		for _, p := range of.Ports {
			if p.Name == port.Name && p.Protocol == port.Protocol {
				return p.Endpoints
			}
		}
	}
	return nil
}

// known are the ready endpoints of a port, or these and the terminating ones.
func known(spec *v1alpha1.ServiceProxyRulesSpec, port *v1alpha1.ServicePort, ready bool) sets.Set[string] {
	all := sets.New[string]()
	for _, group := range spec.EndpointsOf(port) {
		if !ready || group.Effective() == v1alpha1.EndpointReady {
			all.Insert(slices.Collect(group.All())...)
		}
	}
	return all
}

func named(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// serviceOf returns the Service of rules as agents do; false: no agent uses these rules.
func serviceOf(rules *v1alpha1.ServiceProxyRules) (types.NamespacedName, bool) {
	name, ok := combine.ServiceOf(rules.Name)
	return types.NamespacedName(name), ok
}
