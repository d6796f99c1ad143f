package addresses

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Ranges are the service ranges; false: they are not known yet.
type Ranges interface {
	Request() (render.ServiceRanges, bool)
}

// Surroundings know what the cluster has at the addresses that Services name.
type Surroundings struct {
	Client client.Reader // reads come from the cache
	Ranges Ranges
	// APIServers are the URLs that the controller was started with.
	APIServers []string
}

// Of returns what the cluster has at the addresses of a Service; false: not all of it is known yet.
func (s *Surroundings) Of(ctx context.Context, svc *corev1.Service) (render.Cluster, bool, error) {
	var out render.Cluster
	if len(svc.Spec.ExternalIPs)+len(svc.Status.LoadBalancer.Ingress) == 0 {
		return out, true, nil
	}
	var known bool
	if out.Ranges, known = s.Ranges.Request(); !known {
		return out, false, nil
	}
	var err error
	if out.APIServers, err = s.servers(ctx); err != nil {
		return out, false, err
	}
	nodes := map[netip.Addr]bool{}
	for _, a := range render.OutsideIPs(svc) {
		var list corev1.NodeList
		if err := s.Client.List(ctx, &list, client.MatchingFields{objects.IndexNodesByAddress: a.String()}); err != nil {
			return out, false, fmt.Errorf("list Nodes by address: %w", err)
		}
		nodes[a] = len(list.Items) > 0
	}
	out.OfNode = func(a netip.Addr) bool { return nodes[a] }
	return out, true, nil
}

// servers returns the known API servers, ready or not.
func (s *Surroundings) servers(ctx context.Context) (map[netip.Addr][]uint16, error) {
	found, err := objects.SlicesOf(ctx, s.Client, types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: objects.KubernetesService})
	if err != nil {
		return nil, err
	}
	np, err := objects.NodeProxy(ctx, s.Client)
	if err != nil {
		return nil, err
	}
	return render.APIServers(found, np, s.APIServers...), nil
}
