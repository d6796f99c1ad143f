package preview

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Result is what the controllers render once every rollout has finished.
type Result struct {
	// Nodes and Services are the rendered objects, by name. Their metadata only has the names and
	// the labels that the controllers write.
	Nodes    []v1alpha1.NodeProxyRules
	Services []v1alpha1.ServiceProxyRules
	// Problems are the invalid objects and why. What they would have shaped stays as stored.
	Problems []string
	// Notes are other information for those who change policies.
	Notes []string
}

// Render returns what the controllers render from objects.
func Render(in *Objects) *Result {
	r := &renderer{in: in, result: &Result{}, slices: map[types.NamespacedName]*render.ServiceSlices{}}
	switch {
	case in.NodeProxy != nil && in.NodeProxy.DeletionTimestamp != nil && in.NodeProxy.Spec.RemovalPolicy != nil && *in.NodeProxy.Spec.RemovalPolicy == v1alpha1.RemovalCleanup:
		r.problem("NodeProxy %s is being deleted with removalPolicy Cleanup: nothing is rendered any more", in.NodeProxy.Name)
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
	// slices are those of each Service, and onNode the Services of which a slice names a
	// node.
	slices map[types.NamespacedName]*render.ServiceSlices
	onNode map[string][]*render.ServiceSlices
	// apiServers and nodeIPs are compared with the addresses of Services.
	apiServers map[netip.Addr][]uint16
	nodeIPs    map[netip.Addr]bool
}

func (r *renderer) problem(format string, args ...any) {
	r.result.Problems = append(r.result.Problems, fmt.Sprintf(format, args...))
}

func (r *renderer) note(format string, args ...any) {
	r.result.Notes = append(r.result.Notes, fmt.Sprintf(format, args...))
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
	r.nodeIPs = map[netip.Addr]bool{}
	for i := range r.in.Nodes {
		for _, a := range render.NodeIPs(&r.in.Nodes[i]) {
			r.nodeIPs[a] = true
		}
	}
}

// some names the first few of many, sorted.
func some(names []string) string {
	const named = 3
	slices.Sort(names)
	if len(names) <= named {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), len(names)-named)
}
