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
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// rolledOut is how long a change of a policy may be on its way to Services.
const rolledOut = 10 * time.Minute

// everybody are clients that nobody restricts.
const everybody = "everybody"

// exposure lists what clients outside can reach, and finds what is surely not meant.
func (e *examination) exposure() {
	nodePorts := e.nodePortAddresses()
	for name, rules := range e.used(CheckExposure) {
		if !e.concerns(name) {
			continue
		}
		e.exposed(name, rules, nodePorts)
		e.notClosed(name, rules)
		e.openRanges(name, rules)
		e.addressesSkipped(name, rules)
	}
	e.nodeAddresses()
	e.contested()
}

// exposed lists how clients outside reach a Service, but for what another one gets.
func (e *examination) exposed(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodePorts string) {
	spec := &rules.Spec
	show := func(kind, addresses, clients string, ports []string) {
		if len(ports) > 0 && addresses != "" {
			e.report.Exposed = append(e.report.Exposed, Exposure{
				Service: name.String(), Kind: kind, Addresses: addresses, Ports: ports, Clients: clients, By: spec.Policies,
			})
		}
	}
	var onNodes []string
	for _, p := range spec.Ports {
		if p.NodePort != 0 {
			onNodes = append(onNodes, fmt.Sprintf("%d/%s", p.NodePort, p.Protocol))
		}
	}
	show("NodePort", nodePorts, everybody, onNodes)
	showAddresses := func(kind, clients string, addresses []string) {
		byPorts := map[string][]string{} // those with the same ports together
		var order []string
		for _, a := range addresses {
			ports := strings.Join(e.won(name, rules, a), " ")
			if len(byPorts[ports]) == 0 {
				order = append(order, ports)
			}
			byPorts[ports] = append(byPorts[ports], a)
		}
		for _, ports := range order {
			show(kind, strings.Join(byPorts[ports], ", "), clients, strings.Fields(ports))
		}
	}
	showAddresses("ExternalIP", everybody, spec.ExternalIPs)
	clients := everybody
	if len(spec.LoadBalancerSourceRanges) > 0 {
		clients = some(spec.LoadBalancerSourceRanges)
	}
	if svc := e.services[name]; svc != nil && svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0 {
		e.remark("%s is of type LoadBalancer and has no address yet: what makes load balancers here has to give it one", name)
	}
	showAddresses("LoadBalancerIP", clients, spec.LoadBalancerIPs)
	if spec.HealthCheckNodePort != 0 {
		show("HealthCheckNodePort", nodePorts, everybody, []string{fmt.Sprintf("%d/TCP", spec.HealthCheckNodePort)})
	}
}

// won are the ports at which a Service answers at an address.
func (e *examination) won(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, address string) []string {
	var ports []string
	for _, p := range rules.Spec.Ports {
		if holder, ok := e.holders.At(&rules.Spec, claimOf(address, p)); ok && types.NamespacedName(holder) == name {
			ports = append(ports, portOf(p))
		}
	}
	return ports
}

// nodePortAddresses tells which addresses of the nodes answer node ports.
func (e *examination) nodePortAddresses() string {
	nodes := map[string]int{}
	for _, node := range e.nodes {
		s := v1alpha1.CompleteSettings(&node.Spec.Settings).NodePorts
		what := "every address"
		switch *s.AddressMode {
		case v1alpha1.NodePortsPrimary:
			what = "the primary addresses"
		case v1alpha1.NodePortsCIDRs:
			what = "addresses in " + some(s.CIDRs)
		}
		nodes[what]++
	}
	var texts []string
	for _, what := range slices.Sorted(maps.Keys(nodes)) {
		texts = append(texts, what+" of "+output.Plural(nodes[what], "node"))
	}
	return strings.Join(texts, ", ")
}

// openRanges finds source ranges that leave an IP family open, and ranges that are none.
func (e *examination) openRanges(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules) {
	svc := e.services[name]
	if svc == nil {
		return
	}
	// As they are in force: those of a policy take the place of the Service's.
	shaped := svc.DeepCopy()
	if !slices.Equal(rules.Spec.LoadBalancerSourceRanges, svc.Spec.LoadBalancerSourceRanges) && len(rules.Spec.Policies) > 0 {
		shaped.Spec.LoadBalancerSourceRanges = rules.Spec.LoadBalancerSourceRanges
	}
	for _, text := range render.SourceRangeProblems(shaped) {
		e.add(Finding{
			Severity: Problem, Name: "SourceRanges", Check: CheckExposure, Service: name.String(),
			What: "loadBalancerSourceRanges do not restrict clients as they seem to: " + text,
			Do:   fmt.Sprintf("add a range of that family, or correct it: kubectl edit service -n %s %s", name.Namespace, name.Name),
		})
	}
}

// addressesSkipped finds addresses of a Service that no node programs.
func (e *examination) addressesSkipped(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules) {
	if len(rules.Spec.SkippedAddresses) == 0 {
		return
	}
	texts := make([]string, len(rules.Spec.SkippedAddresses))
	for i, a := range rules.Spec.SkippedAddresses {
		texts[i] = a.Address + " " + a.Reason
	}
	e.add(Finding{
		Severity: Warning, Name: "AddressesSkipped", Check: CheckExposure, Service: name.String(),
		What: "the Service does not answer at addresses that no Service may have: " + some(texts),
		Do:   e.docs.See(fmt.Sprintf("take them out of spec.externalIPs, or have what makes load balancers give out others: kubectl edit service -n %s %s", name.Namespace, name.Name), "security.md#who-can-do-what-harm"),
	})
}

// notClosed finds what policies are to close and is open.
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
				continue // or a stronger policy wants it open
			}
			if e.onItsWay(p) {
				continue // which is remarked
			}
			e.add(Finding{
				Severity: Problem, Name: "NotClosed", Check: CheckExposure, Service: name.String(), Policy: "ServiceProxyPolicy/" + p.Name,
				key: "open " + field + " " + name.String(), causes: []string{"policy ServiceProxyPolicy/" + p.Name, keyNoNodeProxy, keyBehind},
				What: fmt.Sprintf("the policy closes %s of the Service, and they are open", field), passing: true, token: rules.ResourceVersion,
				Do: e.docs.See("see why it is not in force: kubectl describe spp "+p.Name, "policies.md#when-it-stops"),
			})
		}
	}
}

// onItsWay reports whether the controller says that it is about to do what a policy says.
func (e *examination) onItsWay(p *v1alpha1.ServiceProxyPolicy) bool {
	c := condition(p.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionFalse)
	return c != nil && c.Reason == v1alpha1.ReasonProgressing && p.Status.ObservedGeneration == p.Generation &&
		e.Time.Sub(c.LastTransitionTime.Time) < rolledOut
}

// claimOf is what a Service claims with one of its addresses and ports.
func claimOf(address string, p v1alpha1.ServicePort) combine.Claim {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return combine.Claim{} // of nobody: no agent uses it
	}
	return combine.Claim{Address: a, Port: uint16(p.Port), Protocol: p.Protocol} //nolint:gosec // the kind has no other ports
}

func portOf(p v1alpha1.ServicePort) string { return fmt.Sprintf("%d/%s", p.Port, p.Protocol) }

// contested finds addresses that several Services want with the same port.
func (e *examination) contested() {
	for name, rules := range e.used(CheckExposure) {
		e.lost(name, rules, "a cluster IP", rules.Spec.ClusterIPs)
		e.lost(name, rules, "an external IP", rules.Spec.ExternalIPs)
		e.lost(name, rules, "a load-balancer IP", rules.Spec.LoadBalancerIPs)
	}
}

// lost names for a Service that does not get addresses and ports the one that does.
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
				continue // by its node port, which is told with the node
			}
			e.add(Finding{
				Severity: Problem, Name: "AddressTaken", Check: CheckExposure, Service: service.String(),
				What: fmt.Sprintf("%s port %s, %s of the Service, already belongs to %s, which gets the connections", address, portOf(p), what, e.preferred(by, rules)),
				Do:   fmt.Sprintf("give one of them another address or port: kubectl edit service -n %s %s", service.Namespace, service.Name),
			})
		}
	}
}

// preferred names the Service that has what another one wants, too, and says why.
func (e *examination) preferred(holder types.NamespacedName, over *v1alpha1.ServiceProxyRules) string {
	has := e.rules[holder]
	switch {
	case has == nil:
		return fmt.Sprintf("the Service %s", holder)
	case has.Spec.ServiceCreated.Equal(&over.Spec.ServiceCreated):
		return fmt.Sprintf("the Service %s (as old, and first by name)", holder)
	case over.Spec.ServiceCreated.Before(&has.Spec.ServiceCreated):
		return fmt.Sprintf("the Service %s (as this one has no cluster IP of that IP family)", holder)
	}
	return fmt.Sprintf("the older Service %s", holder)
}
