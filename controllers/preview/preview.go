package preview

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Objects are those from which the controllers render, of a cluster or from files.
type Objects struct {
	NodeProxy       *v1alpha1.NodeProxy // nil: none
	NodePolicies    []v1alpha1.NodeProxyPolicy
	ServicePolicies []v1alpha1.ServiceProxyPolicy

	Nodes      []corev1.Node
	Namespaces []corev1.Namespace
	Services   []corev1.Service
	Slices     []discoveryv1.EndpointSlice

	// NodeRules and ServiceRules are the stored ones.
	NodeRules    []v1alpha1.NodeProxyRules
	ServiceRules []v1alpha1.ServiceProxyRules
}

// Overlay adds what users have written to existing objects: a NodeProxy and policies replace those
// with their names, or are added. With prune, policies that are not among them are removed.
// Everything else stays.
func (o *Objects) Overlay(written *Objects, prune bool) {
	if written.NodeProxy != nil {
		o.NodeProxy = written.NodeProxy
	}
	o.NodePolicies = overlay(o.NodePolicies, written.NodePolicies, prune, func(p *v1alpha1.NodeProxyPolicy) string { return p.Name })
	o.ServicePolicies = overlay(o.ServicePolicies, written.ServicePolicies, prune, func(p *v1alpha1.ServiceProxyPolicy) string { return p.Name })
}

func overlay[T any](below, above []T, prune bool, name func(*T) string) []T {
	if prune {
		return above
	}
	written := sets.Set[string]{}
	for i := range above {
		written.Insert(name(&above[i]))
	}
	others := slices.DeleteFunc(slices.Clone(below), func(one T) bool { return written.Has(name(&one)) })
	return append(others, above...)
}

// Facts counts the objects that users do not write for nodeproxy.
func (o *Objects) Facts() int {
	return len(o.Nodes) + len(o.Namespaces) + len(o.Services) + len(o.Slices) + len(o.NodeRules) + len(o.ServiceRules)
}

// maxNames is how many objects a problem or note names.
const maxNames = 3

// Result is what the controllers render once every rollout has finished.
type Result struct {
	// Nodes and Services are the rendered objects, by name. Their metadata only has the names and
	// the labels that the controllers write.
	Nodes    []v1alpha1.NodeProxyRules
	Services []v1alpha1.ServiceProxyRules
	Problems []string // invalid objects; what they would have shaped stays as stored
	Notes    []string // other information for the authors of policies
}

// Render returns what the controllers render from objects.
func Render(in *Objects) *Result {
	r := &renderer{in: in, result: &Result{}, slices: map[types.NamespacedName]*render.ServiceSlices{}}
	switch {
	case in.NodeProxy != nil && in.NodeProxy.DeletionTimestamp != nil && ptr.Deref(in.NodeProxy.Spec.RemovalPolicy, "") == v1alpha1.RemovalCleanup:
		r.problem("NodeProxy %s is being deleted with removalPolicy Cleanup: nothing is rendered", in.NodeProxy.Name)
		return r.result
	case in.NodeProxy == nil:
		r.problem("there is no NodeProxy %s: without it nodes keep their settings, and new ones get none", v1alpha1.NodeProxyName)
		if len(in.NodeRules)+len(in.ServiceRules) == 0 {
			return r.result // not switched on yet
		}
	}
	r.format, _ = render.FormatVersion(v1alpha1.FormatVersions(), in.NodeRules)
	r.indexSlices()
	r.indexAddresses()
	r.nodes()
	r.services()
	return r.result
}

// renderer renders one set of objects.
type renderer struct {
	in     *Objects
	result *Result
	format int32
	// slices are those of each Service, and onNode the Services with a slice that names a node.
	slices map[types.NamespacedName]*render.ServiceSlices
	onNode map[string][]*render.ServiceSlices
	// apiServers and nodeIPs are compared with the addresses of Services.
	apiServers map[netip.Addr][]uint16
	nodeIPs    sets.Set[netip.Addr]
}

func (r *renderer) problem(format string, args ...any) {
	r.result.Problems = append(r.result.Problems, fmt.Sprintf(format, args...))
}

func (r *renderer) note(format string, args ...any) {
	r.result.Notes = append(r.result.Notes, fmt.Sprintf(format, args...))
}

// reportUnused reports policies that select nothing.
func (r *renderer) reportUnused(format string, selected map[string]int) {
	for _, name := range slices.Sorted(maps.Keys(selected)) {
		if selected[name] == 0 {
			r.note(format, name)
		}
	}
}

// indexSlices finds the slices of Services, and the Services of nodes.
func (r *renderer) indexSlices() {
	r.onNode = map[string][]*render.ServiceSlices{}
	local := map[types.NamespacedName]bool{}
	for i := range r.in.Services {
		svc := &r.in.Services[i]
		local[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = render.HasPolicyLocal(svc)
	}
	for i := range r.in.Slices {
		slice := &r.in.Slices[i]
		svc, ok := render.ServiceOf(slice)
		if !ok {
			continue
		}
		of := r.slices[svc]
		if of == nil {
			of = &render.ServiceSlices{Service: svc, Local: local[svc]}
			r.slices[svc] = of
		}
		of.Slices = append(of.Slices, slice)
		for _, node := range render.NodesNamed(slice) {
			// Slices of one Service may be far from each other in the list.
			if !slices.Contains(r.onNode[node], of) {
				r.onNode[node] = append(r.onNode[node], of)
			}
		}
	}
}

// indexAddresses finds the addresses of API servers and Nodes.
func (r *renderer) indexAddresses() {
	var ofKubernetes []*discoveryv1.EndpointSlice
	if found := r.slices[types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}]; found != nil {
		ofKubernetes = found.Slices
	}
	r.apiServers = render.APIServers(ofKubernetes, r.in.NodeProxy)
	r.nodeIPs = sets.Set[netip.Addr]{}
	for i := range r.in.Nodes {
		r.nodeIPs.Insert(render.NodeIPs(&r.in.Nodes[i])...)
	}
}
