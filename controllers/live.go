package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/preview"
)

// LiveObjects reads the objects from which the controllers render, for package preview.
func LiveObjects(ctx context.Context, reader client.Reader) (*preview.Objects, error) {
	var (
		nodeProxies     v1alpha1.NodeProxyList
		nodePolicies    v1alpha1.NodeProxyPolicyList
		servicePolicies v1alpha1.ServiceProxyPolicyList
		nodes           corev1.NodeList
		namespaces      corev1.NamespaceList
		services        corev1.ServiceList
		slices          discoveryv1.EndpointSliceList
		nodeRules       v1alpha1.NodeProxyRulesList
		serviceRules    v1alpha1.ServiceProxyRulesList
	)
	// Rendered objects come last: of a change meanwhile, the cause is known.
	for _, list := range []client.ObjectList{&nodeProxies, &nodePolicies, &servicePolicies, &nodes, &namespaces, &services, &slices, &nodeRules, &serviceRules} {
		if err := reader.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	out := &preview.Objects{
		NodePolicies: nodePolicies.Items, ServicePolicies: servicePolicies.Items,
		Nodes: nodes.Items, Namespaces: namespaces.Items, Services: services.Items, Slices: slices.Items,
		NodeRules: nodeRules.Items, ServiceRules: serviceRules.Items,
	}
	if len(nodeProxies.Items) > 0 { // the API accepts one only
		out.NodeProxy = &nodeProxies.Items[0]
	}
	return out, nil
}
