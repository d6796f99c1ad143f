package objects

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// KubernetesService is the Service whose EndpointSlices are the API servers.
const KubernetesService = "kubernetes"

// Indexes of EndpointSlices, and of Services and Nodes by their addresses.
const (
	indexSlicesByService   = "nodeproxy.io/service"
	IndexSlicesByNode      = "nodeproxy.io/node"
	IndexServicesByAddress = "nodeproxy.io/service-address"
	IndexNodesByAddress    = "nodeproxy.io/node-address"
)

// AddIndexes indexes slices by Service (name within its namespace) and by the nodes they
// name, and Services and Nodes by their addresses.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		of   client.Object
		name string
		keys client.IndexerFunc
	}{
		{&discoveryv1.EndpointSlice{}, indexSlicesByService, serviceOfSlice},
		{&discoveryv1.EndpointSlice{}, IndexSlicesByNode, nodesOfSlice},
		{&corev1.Service{}, IndexServicesByAddress, outsideIPs},
		{&corev1.Node{}, IndexNodesByAddress, nodeIPs},
	} {
		if err := indexer.IndexField(ctx, index.of, index.name, index.keys); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.of, index.name, err)
		}
	}
	return nil
}

func serviceOfSlice(o client.Object) []string {
	if svc, ok := render.ServiceOf(o.(*discoveryv1.EndpointSlice)); ok {
		return []string{svc.Name}
	}
	return nil
}

func nodesOfSlice(o client.Object) []string {
	slice := o.(*discoveryv1.EndpointSlice)
	if _, ok := render.ServiceOf(slice); !ok {
		return nil
	}
	return render.NodesNamed(slice)
}

// SlicesOf returns all EndpointSlices of a Service, or as many as exceed the limit even without one of
// them. The cost of a change does not grow further.
func SlicesOf(ctx context.Context, c client.Reader, svc types.NamespacedName) ([]*discoveryv1.EndpointSlice, error) {
	return ListSlices(ctx, c, client.InNamespace(svc.Namespace), client.MatchingFields{indexSlicesByService: svc.Name},
		client.Limit(v1alpha1.MaxServiceSlices+2))
}

// APIServerSlices returns the EndpointSlice that the API servers maintain, if it exists. It is read by
// name: SlicesOf may lack it if others add slices to default/kubernetes.
func APIServerSlices(ctx context.Context, c client.Reader) ([]*discoveryv1.EndpointSlice, error) {
	slice, err := Find[discoveryv1.EndpointSlice](ctx, c, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: render.APIServerSlice})
	if err != nil || slice == nil {
		return nil, err
	}
	return []*discoveryv1.EndpointSlice{slice}, nil
}

// ListSlices lists EndpointSlices.
func ListSlices(ctx context.Context, c client.Reader, opts ...client.ListOption) ([]*discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	if err := c.List(ctx, &list, opts...); err != nil {
		return nil, fmt.Errorf("list EndpointSlices: %w", err)
	}
	out := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

// AnyAddress finds all Services with an address in the index by address.
const AnyAddress = "*"

func outsideIPs(o client.Object) []string {
	addresses := render.OutsideIPs(o.(*corev1.Service))
	if len(addresses) == 0 {
		return nil
	}
	keys := []string{AnyAddress}
	for _, a := range addresses {
		keys = append(keys, a.String())
	}
	return keys
}

func nodeIPs(o client.Object) []string {
	var keys []string
	for _, a := range render.NodeIPs(o.(*corev1.Node)) {
		keys = append(keys, a.String())
	}
	return keys
}
