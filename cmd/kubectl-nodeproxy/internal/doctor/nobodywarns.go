package doctor

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// nobodyWarns: clients find nodes without endpoints by node ports and external IPs, as
// nothing between them and the nodes asks a health check port and keeps them away.
func (e *examination) nobodyWarns(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodes []string) {
	hasNodePort := slices.ContainsFunc(rules.Spec.Ports, func(p v1alpha1.ServicePort) bool { return p.NodePort != 0 })
	var by string
	switch hasExternalIP := len(rules.Spec.ExternalIPs)+len(rules.Spec.LoadBalancerIPs) > 0; {
	case hasNodePort && hasExternalIP:
		by = "the node ports and the external IPs"
	case hasNodePort:
		by = "the node ports"
	case hasExternalIP:
		by = "the external IPs"
	default:
		return // nobody outside reaches it
	}
	set := fmt.Sprintf("set externalTrafficPolicy to Cluster (clients' addresses are masqueraded then): kubectl edit service -n %s %s", name.Namespace, name.Name)
	if len(rules.Spec.Policies) > 0 {
		set += fmt.Sprintf(" (ServiceProxyPolicies shape the Service, too: %s)", some(rules.Spec.Policies))
	}
	e.add(Finding{
		Severity: Warning, Name: "ExternalLocalWithoutEndpoint", Check: CheckTrafficPolicy, Service: name.String(), Nodes: nodes,
		causes: []string{"rendering " + name.String(), "endpoints " + name.String()},
		What: fmt.Sprintf("externalTrafficPolicy is Local, and no endpoint is on %s: what clients outside send to %s there is dropped, as no load balancer asks a health check port and keeps away",
			thereOn(len(nodes)), by),
		Do: "send clients to nodes with endpoints alone, run a pod of it on each node (a DaemonSet), or " + set,
	})
}
