package preview

import (
	"cmp"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Render returns what the controllers render from objects.
func Render(in *Objects) *Result {
	r := &renderer{in: in, result: &Result{}, slices: map[types.NamespacedName]*render.ServiceSlices{}}
	switch {
	case in.NodeProxy != nil && in.NodeProxy.DeletionTimestamp != nil && ptr.Deref(in.NodeProxy.Spec.RemovalPolicy, "") == v1alpha1.RemovalCleanup:
		r.problem("NodeProxy %s is being deleted with removalPolicy Cleanup: nothing is rendered", in.NodeProxy.Name)
		return r.result
	case in.NodeProxy == nil:
		r.problem("there is no NodeProxy %s: without it nodes retain their settings, and new ones get none", v1alpha1.NodeProxyName)
		if len(in.NodeRules)+len(in.ServiceRules) == 0 {
			return r.result // not enabled yet
		}
	}
	r.format, _ = render.FormatVersion(v1alpha1.FormatVersions(), in.NodeRules)
	r.indexSlices()
	r.indexAddresses()
	r.nodes()
	r.services()
	return r.result
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
	ofKubernetes := r.slices[types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}]
	r.apiServers = render.APIServers(cmp.Or(ofKubernetes, &render.ServiceSlices{}).Slices, r.in.NodeProxy)
	r.nodeIPs = sets.Set[netip.Addr]{}
	for i := range r.in.Nodes {
		r.nodeIPs.Insert(render.NodeIPs(&r.in.Nodes[i])...)
	}
}
