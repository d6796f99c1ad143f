package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// maxRollout is how long the rollout of a policy to Services may take.
const maxRollout = 10 * time.Minute

// anyClient: no source ranges restrict the clients.
const anyClient = "any"

// exposure lists what clients outside can reach, and reports what cannot be intended.
func (e *examination) exposure() {
	nodePorts := e.nodePortAddresses()
	for name, rules := range e.used(findings.CheckExposure) {
		e.exposed(name, rules, nodePorts)
		e.notClosed(name, rules)
		e.openRanges(name, rules)
		e.addressesSkipped(name, rules)
	}
	e.nodeAddresses()
	e.contested()
}

// exposed lists how clients outside reach a Service, without addresses that another Service
// owns.
func (e *examination) exposed(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodePorts string) {
	spec := &rules.Spec
	show := func(kind, addresses, clients string, ports []string) {
		if len(ports) > 0 && addresses != "" {
			e.report.Exposure = append(e.report.Exposure, Exposure{
				Service: name.String(), Type: kind, Addresses: addresses, Ports: ports, Clients: clients, Policies: spec.Policies,
			})
		}
	}
	var onNodes []string
	for _, p := range spec.Ports {
		if p.NodePort != 0 {
			onNodes = append(onNodes, fmt.Sprintf("%d/%s", p.NodePort, p.Protocol))
		}
	}
	show("NodePort", nodePorts, anyClient, onNodes)
	showAddresses := func(kind, clients string, addresses []string) {
		byPorts := map[string][]string{}
		var order []string
		for _, a := range addresses {
			var owned []string
			for _, p := range spec.Ports {
				if holder, ok := e.holders.At(spec, claimOf(a, p)); ok && types.NamespacedName(holder) == name {
					owned = append(owned, portOf(p))
				}
			}
			ports := strings.Join(owned, " ")
			if len(byPorts[ports]) == 0 {
				order = append(order, ports)
			}
			byPorts[ports] = append(byPorts[ports], a)
		}
		for _, ports := range order {
			show(kind, strings.Join(byPorts[ports], ", "), clients, strings.Fields(ports))
		}
	}
	var external, both []string
	for _, a := range spec.ExternalIPs {
		if slices.Contains(spec.LoadBalancerIPs, a) {
			both = append(both, a)
		} else {
			external = append(external, a)
		}
	}
	showAddresses("ExternalIP", anyClient, external)
	clients := anyClient
	if len(spec.LoadBalancerSourceRanges) > 0 {
		clients = findings.Some(spec.LoadBalancerSourceRanges)
	}
	if svc := e.services[name]; svc != nil && svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0 {
		e.Notef("%s is of type LoadBalancer and has no address yet: the cluster's load balancer controller assigns one", name)
	}
	if len(both) > 0 {
		showAddresses("ExternalIP", e.clientsOfBoth(clients), both)
	}
	showAddresses("LoadBalancerIP", clients, spec.LoadBalancerIPs)
	if spec.HealthCheckNodePort != 0 {
		show("HealthCheckNodePort", nodePorts, anyClient, []string{fmt.Sprintf("%d/TCP", spec.HealthCheckNodePort)})
	}
}

// clientsOfBoth returns the clients of an external IP that is a load-balancer IP, too. Only mode
// NFTables applies the source ranges to it.
func (e *examination) clientsOfBoth(restricted string) string {
	nodes := 0
	for _, node := range e.Nodes {
		if node.Status.Mode == v1alpha1.ModeNFTables {
			nodes++
		}
	}
	switch {
	case nodes == 0 || restricted == anyClient:
		return anyClient
	case nodes == len(e.Nodes):
		return restricted
	}
	return fmt.Sprintf("%s; in mode NFTables %s", anyClient, restricted)
}

// nodePortAddresses returns which addresses of the nodes serve node ports.
func (e *examination) nodePortAddresses() string {
	nodes := map[string]int{}
	for _, node := range e.Nodes {
		s := v1alpha1.CompleteSettings(&node.Spec.Settings).NodePorts
		what := "every address"
		switch *s.AddressMode {
		case v1alpha1.NodePortsPrimary:
			what = "the primary addresses"
		case v1alpha1.NodePortsCIDRs:
			what = "addresses in " + findings.Some(s.CIDRs)
		}
		nodes[what]++
	}
	var texts []string
	for _, what := range slices.Sorted(maps.Keys(nodes)) {
		texts = append(texts, what+" of "+text.Count(nodes[what], "node"))
	}
	return strings.Join(texts, ", ")
}

// openRanges reports source ranges that leave an IP family open, and invalid ranges.
func (e *examination) openRanges(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules) {
	svc := e.services[name]
	if svc == nil {
		return
	}
	// As applied: those of a policy replace the Service's.
	shaped := svc.DeepCopy()
	if !slices.Equal(rules.Spec.LoadBalancerSourceRanges, svc.Spec.LoadBalancerSourceRanges) && len(rules.Spec.Policies) > 0 {
		shaped.Spec.LoadBalancerSourceRanges = rules.Spec.LoadBalancerSourceRanges
	}
	for _, text := range render.SourceRangeProblems(shaped) {
		e.Add(findings.Finding{
			Severity: findings.Problem, Reason: "SourceRanges", Check: findings.CheckExposure, Service: name.String(),
			Message: "loadBalancerSourceRanges do not restrict all clients: " + text,
			Remedy:  "add a range of that family, or correct it: " + editService(name),
		})
	}
}

// addressesSkipped reports addresses of a Service that no node programs.
func (e *examination) addressesSkipped(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules) {
	if len(rules.Spec.SkippedAddresses) == 0 {
		return
	}
	var texts []string
	for _, a := range rules.Spec.SkippedAddresses {
		texts = append(texts, a.Address+" "+a.Reason)
	}
	e.Add(findings.Finding{
		Severity: findings.Warning, Reason: "AddressesSkipped", Check: findings.CheckExposure, Service: name.String(),
		Message: "the Service is not served at addresses that no Service may have: " + findings.Some(texts),
		Remedy:  e.Docs.See("remove them from spec.externalIPs, or configure the load balancer controller to assign others: "+editService(name), "security.md#who-can-do-what-harm"),
	})
}

// notClosed reports node ports and external IPs that are open although a policy disables
// them.
func (e *examination) notClosed(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules) {
	svc := e.services[name]
	if svc == nil || e.shapes == nil {
		return
	}
	open := map[string]bool{
		"nodePorts":   slices.ContainsFunc(rules.Spec.Ports, func(p v1alpha1.ServicePort) bool { return p.NodePort != 0 }),
		"externalIPs": len(rules.Spec.ExternalIPs) > 0,
	}
	owners := e.shapes.Resolve(e.labels[svc.Namespace], svc.Labels).Owners
	for i := range e.ServicePolicies {
		p := &e.ServicePolicies[i]
		if !e.servicePolicies[i].Selects(e.labels[svc.Namespace], svc.Labels) {
			continue
		}
		o := p.Spec.Overrides
		for field, toggle := range map[string]*v1alpha1.Toggle{"nodePorts": o.NodePorts, "externalIPs": o.ExternalIPs} {
			if toggle == nil || *toggle != v1alpha1.Disabled || !open[field] || owners[field] != "" && owners[field] != p.Name {
				continue // or a policy with precedence enables it
			}
			c := findings.Condition(p.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionFalse)
			if c != nil && c.Reason == v1alpha1.ReasonProgressing && p.Status.ObservedGeneration == p.Generation && e.Time.Sub(c.LastTransitionTime.Time) < maxRollout {
				continue // which is a note
			}
			e.Add(findings.Finding{
				Severity: findings.Problem, Reason: "PolicyNotApplied", Check: findings.CheckExposure, Service: name.String(), Policy: "ServiceProxyPolicy/" + p.Name,
				Key: "open " + field + " " + name.String(), Causes: []string{"policy ServiceProxyPolicy/" + p.Name, findings.KeyNoNodeProxy, findings.KeyBehind},
				Message: fmt.Sprintf("the policy disables %s of the Service, but they are open", field), Transient: true, Token: rules.ResourceVersion,
				Remedy: e.Docs.See("see why it is not applied: kubectl describe spp "+p.Name, "policies.md#when-it-halts"),
			})
		}
	}
}

func claimOf(address string, p v1alpha1.ServicePort) combine.Claim {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return combine.Claim{} // no agent uses it
	}
	return combine.Claim{Address: a, Port: uint16(p.Port), Protocol: p.Protocol} //nolint:gosec // the kind has no other ports
}

func portOf(p v1alpha1.ServicePort) string { return fmt.Sprintf("%d/%s", p.Port, p.Protocol) }

// contested reports addresses and ports that several Services claim.
func (e *examination) contested() {
	for name, rules := range e.rules { // of all Services, because the other one may be the examined one
		if rules.Spec.Released || rules.Spec.FormatVersion > v1alpha1.FormatVersion {
			continue
		}
		e.lost(name, rules, "a cluster IP", rules.Spec.ClusterIPs)
		e.lost(name, rules, "an external IP", rules.Spec.ExternalIPs)
		e.lost(name, rules, "a load-balancer IP", rules.Spec.LoadBalancerIPs)
	}
}

// lost reports addresses and ports of a Service that another one owns.
func (e *examination) lost(service types.NamespacedName, rules *v1alpha1.ServiceProxyRules, what string, addresses []string) {
	for _, address := range addresses {
		for _, p := range rules.Spec.Ports {
			claim := claimOf(address, p)
			holder, ok := e.holders.At(&rules.Spec, claim)
			by := types.NamespacedName(holder)
			if !ok || by == service || !e.concerns(service) && !e.concerns(by) {
				continue
			}
			if first, _ := e.holders.Of(claim); first != holder {
				continue // by its node port: see nodeAddresses
			}
			e.Add(findings.Finding{
				Severity: findings.Problem, Reason: "AddressTaken", Check: findings.CheckExposure, Service: service.String(),
				Message: fmt.Sprintf("%s port %s, %s of the Service, belongs to %s, which gets the connections", address, portOf(p), what, e.preferred(by, rules)),
				Remedy:  "change the address or port of one of them: " + editService(service),
			})
		}
	}
}

// preferred names the Service that owns a contested address and port, and explains why.
func (e *examination) preferred(holder types.NamespacedName, over *v1alpha1.ServiceProxyRules) string {
	has := e.rules[holder]
	switch {
	case has == nil:
		return fmt.Sprintf("the Service %s", holder)
	case has.Spec.ServiceCreated.Equal(&over.Spec.ServiceCreated):
		return fmt.Sprintf("the Service %s (equally old, and first by name)", holder)
	case over.Spec.ServiceCreated.Before(&has.Spec.ServiceCreated):
		return fmt.Sprintf("the Service %s (because this one has no cluster IP of that IP family)", holder)
	}
	return fmt.Sprintf("the older Service %s", holder)
}

func editService(name types.NamespacedName) string {
	return fmt.Sprintf("kubectl edit service -n %s %s", name.Namespace, name.Name)
}

// portsOfNodes are the TCP ports of the node itself: SSH, API server, kubelet, health and
// metrics of kube-proxy and of nodeproxy.
func portsOfNodes() []int32 { return []int32{22, 6443, 10249, 10250, 10256, 19256, 19257, 19258} }

// nodeAddresses reports addresses of Services that are addresses of nodes. Load balancers on
// the nodes commonly assign these. That is a problem if the node itself uses the port; a
// node port stays with its owner.
func (e *examination) nodeAddresses() {
	nodes := map[string]string{}
	for _, node := range e.Nodes {
		for _, a := range node.Spec.Node.Addresses {
			nodes[a] = node.Name
		}
	}
	for name, rules := range e.used(findings.CheckExposure) {
		ofNode, nodePorts := e.clashes(name, &rules.Spec)
		of := func(what string, severity findings.Severity, addresses []string) {
			for _, a := range addresses {
				if nodes[a] == "" {
					continue
				}
				f := findings.Finding{
					Severity: severity, Reason: "NodeAddressTaken", Check: findings.CheckExposure, Service: name.String(), Nodes: []string{nodes[a]},
					Message: fmt.Sprintf("%s, %s of the Service, is the node's own address: the Service gets connections to its ports there", a, what),
					Remedy:  "remove it from the Service: " + editService(name),
				}
				if len(ofNode) > 0 {
					f.Severity = findings.Problem
					f.Message += ", also those that the node needs: " + strings.Join(ofNode, ", ")
				}
				if len(nodePorts) > 0 {
					f.Severity = findings.Problem
					f.Message += ", except those that stay with their owner: " + strings.Join(nodePorts, ", ")
				}
				e.Add(f)
			}
		}
		of("a cluster IP", findings.Problem, rules.Spec.ClusterIPs)
		of("an external IP", findings.Warning, rules.Spec.ExternalIPs)
		balanced := slices.DeleteFunc(slices.Clone(rules.Spec.LoadBalancerIPs), func(a string) bool {
			return nodes[a] == "" || slices.Contains(rules.Spec.ExternalIPs, a)
		})
		switch {
		case len(balanced) == 0:
		case len(ofNode)+len(nodePorts) > 0:
			of("a load-balancer IP", findings.Problem, balanced)
		default:
			are := "are addresses of nodes"
			if len(balanced) == 1 {
				are = "is an address of a node"
			}
			e.Notef("%s of %s: %s %s, as with load balancers on the nodes: the Service gets the connections to its ports there",
				text.Count(len(balanced), "load-balancer IP"), name, findings.Some(balanced), are)
		}
	}
}

// clashes describes the ports of a Service that the node itself, or another Service by its node
// port, uses on the node's addresses.
func (e *examination) clashes(name types.NamespacedName, spec *v1alpha1.ServiceProxyRulesSpec) (ofNode, nodePorts []string) {
	for _, p := range spec.Ports {
		owner := name
		for _, everywhere := range []string{"::", "0.0.0.0"} { // IPv4 counts if both are taken
			if of, ok := e.holders.Of(claimOf(everywhere, p)); ok {
				owner = types.NamespacedName(of)
			}
		}
		switch {
		case owner != name:
			nodePorts = append(nodePorts, fmt.Sprintf("%s is the node port of %s", portOf(p), owner))
		case p.Protocol == v1alpha1.ProtocolTCP && slices.Contains(portsOfNodes(), p.Port):
			ofNode = append(ofNode, portOf(p)+" is a port of the node itself")
		}
	}
	return ofNode, nodePorts
}
