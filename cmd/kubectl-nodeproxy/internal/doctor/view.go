package doctor

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// view is the objects of a cluster, indexed.
type view struct {
	*findings.Examination
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName][]*discoveryv1.EndpointSlice
	rules    map[types.NamespacedName]*v1alpha1.ServiceProxyRules
	// holders are the Services that own an address and port.
	holders combine.Holders
	pods    map[string][]*corev1.Pod // by namespace
	labels  map[string]map[string]string
	// members are the local endpoints in the rules of the nodes.
	members map[string]map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints
	// servicePolicies are ServicePolicies as the controller reads them, in that order.
	servicePolicies []policies.ServicePolicy
	// shapes resolves the overrides of Services; nil if policies could not be read.
	shapes   *policies.Services
	rejected map[types.NamespacedName]bool // by the controller
}

func newView(o *cluster.Objects, q *Question) (*view, error) {
	v := &view{
		Examination: findings.New(o, q.Docs, q.Service),
		holders:     combine.HoldersOf(o.ServiceRules),
		services:    map[types.NamespacedName]*corev1.Service{},
		slices:      map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
		rules:       map[types.NamespacedName]*v1alpha1.ServiceProxyRules{},
		pods:        map[string][]*corev1.Pod{},
		labels:      map[string]map[string]string{},
		rejected:    map[types.NamespacedName]bool{},
		members:     map[string]map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints{},
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
	for _, node := range v.Nodes {
		v.members[node.Name] = combine.Members(node.Spec.LocalEndpoints)
	}
	if o.NodeProxy != nil {
		for _, r := range o.NodeProxy.Status.Unrendered {
			v.rejected[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = true
		}
	}
	v.readPolicies()
	if only := q.Service; only != nil && v.Unreadable(cluster.Services) == "" && v.services[*only] == nil {
		return nil, fmt.Errorf("%w as %s: kubectl get services -n %s lists the Services", ErrNoService, only, only.Namespace)
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
	if v.Unreadable(cluster.ServiceProxyPolicies, cluster.Namespaces) != "" {
		return
	}
	v.shapes = policies.NewServices(valid)
}

// asked returns the Services to examine.
func (v *view) asked() []*corev1.Service {
	if v.Only != nil {
		if svc := v.services[*v.Only]; svc != nil {
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

// concerns reports whether a Service is examined.
func (v *view) concerns(service types.NamespacedName) bool {
	return v.Only == nil || *v.Only == service
}

// desired is what the controller renders from a Service now: with the overrides that it got
// before, and with those of the current policies, if these are readable.
func (v *view) desired(svc *corev1.Service) (before, now *v1alpha1.ServiceProxyRules, problems []render.Problem) {
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
	before, problems = render.Service(svc, of, shape, in, version)
	now = before
	if v.shapes != nil {
		r := v.shapes.Resolve(v.labels[svc.Namespace], svc.Labels)
		now, _ = render.Service(svc, of, render.Shape{Overrides: &r.Overrides, Policies: r.Policies}, in, version)
	}
	return before, now, problems
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

// known are the addresses of a port, ready or terminating.
func known(port v1alpha1.ServicePort) map[string]bool {
	all := map[string]bool{}
	for _, group := range port.Endpoints {
		for _, address := range group.Addresses {
			all[address] = true
		}
	}
	return all
}

// usable are the addresses of a port under policy Cluster: the ready ones, else the
// terminating ones.
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

// serviceOf returns the Service of rules as agents do; false: no agent uses these rules.
func serviceOf(rules *v1alpha1.ServiceProxyRules) (types.NamespacedName, bool) {
	name, ok := combine.ServiceOf(rules.Name)
	return types.NamespacedName(name), ok
}
