package doctor

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// view is the objects of a cluster, and what belongs together.
type view struct {
	*cluster.Objects
	// only is the Service that is asked for; nil: all.
	only *types.NamespacedName
	docs hints.Docs
	// own is where nodeproxy's own pods are.
	own      hints.Namespace
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName][]*discoveryv1.EndpointSlice
	rules    map[types.NamespacedName]*v1alpha1.ServiceProxyRules
	// holders tell whose an address and port is.
	holders combine.Holders
	pods    map[string][]*corev1.Pod // by namespace
	labels  map[string]map[string]string
	// nodes are those whose Node exists, as far as the controller knows.
	nodes []*v1alpha1.NodeProxyRules
	// members are what these nodes are told of endpoints on them, by their names.
	members map[string]map[dataplane.ServiceName]*v1alpha1.ServiceMembers
	// servicePolicies are ServicePolicies as the controller reads them, in that order.
	servicePolicies []policies.ServicePolicy
	// shapes resolves what policies make of Services; nil where it cannot be told.
	shapes  *policies.Services
	refused map[types.NamespacedName]string // by the controller
}

func newView(o *cluster.Objects, q *Question) (*view, error) {
	only := q.Service
	v := &view{
		Objects: o, only: only, docs: q.Docs, own: hints.NamespaceOf(o.Pods),
		holders:  combine.HoldersOf(o.ServiceRules),
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
		rules:    map[types.NamespacedName]*v1alpha1.ServiceProxyRules{},
		pods:     map[string][]*corev1.Pod{},
		labels:   map[string]map[string]string{},
		refused:  map[types.NamespacedName]string{},
		members:  map[string]map[dataplane.ServiceName]*v1alpha1.ServiceMembers{},
	}
	for i := range o.Services {
		v.services[named(&o.Services[i])] = &o.Services[i]
	}
	for i := range o.EndpointSlices {
		slice := &o.EndpointSlices[i]
		if of := slice.Labels[discoveryv1.LabelServiceName]; of != "" {
			key := types.NamespacedName{Namespace: slice.Namespace, Name: of}
			v.slices[key] = append(v.slices[key], slice)
		}
	}
	for i := range o.ServiceRules {
		if key, ok := serviceOf(&o.ServiceRules[i]); ok {
			v.rules[key] = &o.ServiceRules[i]
		}
	}
	for i := range o.Pods {
		v.pods[o.Pods[i].Namespace] = append(v.pods[o.Pods[i].Namespace], &o.Pods[i])
	}
	for i := range o.Namespaces {
		v.labels[o.Namespaces[i].Name] = o.Namespaces[i].Labels
	}
	for i := range o.NodeRules {
		if o.NodeRules[i].Annotations[v1alpha1.AnnotationNodeAbsentSince] == "" {
			v.nodes = append(v.nodes, &o.NodeRules[i])
			v.members[o.NodeRules[i].Name] = combine.Members(o.NodeRules[i].Spec.Services)
		}
	}
	if o.NodeProxy != nil {
		for _, r := range o.NodeProxy.Status.Refused {
			v.refused[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = r.Message
		}
	}
	v.readPolicies()
	if only == nil || v.lacking(cluster.Services) != "" {
		return v, nil
	}
	if v.services[*only] == nil {
		return nil, fmt.Errorf("%w as %s: kubectl get services -n %s lists those that there are", ErrNoService, only, only.Namespace)
	}
	return v, nil
}

func (v *view) readPolicies() {
	var valid []policies.ServicePolicy
	for i := range v.ServicePolicies {
		policy, errs := policies.ServicePolicyOf(&v.ServicePolicies[i])
		v.servicePolicies = append(v.servicePolicies, policy)
		if len(errs) == 0 {
			valid = append(valid, policy)
		}
	}
	if v.lacking(cluster.ServiceProxyPolicies, cluster.Namespaces) != "" {
		return
	}
	v.shapes = policies.NewServices(valid)
}

// lacking says why one of the kinds could not be read; empty: all were.
func (v *view) lacking(kinds ...cluster.Kind) string {
	for _, u := range v.Unread {
		if slices.Contains(kinds, u.Kind) {
			return u.Why
		}
	}
	return ""
}

// asked returns the Services that are looked at.
func (v *view) asked() []*corev1.Service {
	if v.only != nil {
		if svc := v.services[*v.only]; svc != nil {
			return []*corev1.Service{svc}
		}
		return nil
	}
	out := make([]*corev1.Service, 0, len(v.Services))
	for i := range v.Services {
		out = append(out, &v.Services[i])
	}
	return out
}

// concerns reports whether a Service is looked at.
func (v *view) concerns(service types.NamespacedName) bool {
	return v.only == nil || *v.only == service
}

// wanted is what the controller makes of a Service now: what it has with the overrides
// that it was given, and that with those that policies make now, where they can be told.
func (v *view) wanted(svc *corev1.Service) (kept, now *v1alpha1.ServiceProxyRules, problems []render.Problem) {
	key := named(svc)
	version, shape, in := v1alpha1.FormatVersion, render.Shape{}, render.Cluster{}
	stored := v.rules[key]
	if stored != nil {
		version, in = stored.Spec.FormatVersion, render.StoredCluster(&stored.Spec)
		if grant := policies.ReadOverrides(stored.Annotations[v1alpha1.AnnotationOverrides]); grant != nil {
			shape = render.Shape{Overrides: &grant.Overrides, Policies: stored.Spec.Policies}
		}
	}
	of := v.rendered(key)
	kept, problems = render.Service(svc, of, shape, in, version)
	now = kept
	if v.shapes != nil {
		r := v.shapes.Resolve(v.labels[svc.Namespace], svc.Labels)
		now, _ = render.Service(svc, of, render.Shape{Overrides: &r.Overrides, Policies: r.Policies}, in, version)
	}
	return kept, now, problems
}

// rendered are the slices from which a Service is rendered.
func (v *view) rendered(key types.NamespacedName) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, slice := range v.slices[key] {
		if _, ok := render.ServiceOf(slice); ok {
			out = append(out, slice)
		}
	}
	return out
}

// membersOn are the endpoints of one port of a Service that are on a node.
func (v *view) membersOn(node *v1alpha1.NodeProxyRules, service types.NamespacedName, port v1alpha1.ServicePort) []string {
	of := v.members[node.Name][dataplane.ServiceName(service)]
	if of == nil {
		return nil
	}
	for _, p := range of.Ports {
		if p.Name == port.Name && p.Protocol == port.Protocol {
			return p.Endpoints
		}
	}
	return nil
}

// known are the addresses of a port that nodes know, ready or terminating.
func known(port v1alpha1.ServicePort) map[string]bool {
	all := map[string]bool{}
	for _, group := range port.Endpoints {
		for _, address := range group.Addresses {
			all[address] = true
		}
	}
	return all
}

// usable are the addresses of a port that take connections from everywhere: those that
// are ready, else those that terminate.
func usable(port v1alpha1.ServicePort) map[string]bool {
	ready := port
	ready.Endpoints = slices.DeleteFunc(slices.Clone(port.Endpoints), func(g v1alpha1.EndpointGroup) bool { return g.State != v1alpha1.EndpointReady })
	if all := known(ready); len(all) > 0 {
		return all
	}
	return known(port)
}

func named(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// serviceOf names the Service of rules as agents do; false: no agent uses these rules.
func serviceOf(rules *v1alpha1.ServiceProxyRules) (types.NamespacedName, bool) {
	name, ok := combine.ServiceOf(rules.Name)
	return types.NamespacedName(name), ok
}

// condition finds one that has a status; nil: there is none.
func condition(of []metav1.Condition, name string, status metav1.ConditionStatus) *metav1.Condition {
	if c := meta.FindStatusCondition(of, name); c != nil && c.Status == status {
		return c
	}
	return nil
}

// since is when a condition came to be as it is.
func since(c *metav1.Condition) *metav1.Time {
	if c == nil || c.LastTransitionTime.IsZero() {
		return nil
	}
	return &c.LastTransitionTime
}

// some names a few of many.
func some(names []string) string { return output.Some(names, 5) }
