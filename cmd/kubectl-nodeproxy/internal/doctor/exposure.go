package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// everybody are clients that nobody restricts.
const everybody = "everybody"

// exposure lists what clients outside can reach, and finds what is surely not meant.
func (e *examination) exposure() {
	nodePorts := e.nodePortAddresses()
	for i := range e.ServiceRules {
		rules := &e.ServiceRules[i]
		name, ok := serviceOf(rules)
		if !ok || rules.Spec.Released || !e.concerns(name) {
			continue
		}
		e.exposed(name, rules, nodePorts)
		e.notClosed(name, rules)
		e.openRanges(name, rules)
	}
	e.contested()
}

func (e *examination) exposed(name types.NamespacedName, rules *v1alpha1.ServiceProxyRules, nodePorts string) {
	spec := &rules.Spec
	show := func(kind, addresses, clients string, ports []string) {
		if len(ports) > 0 && addresses != "" {
			e.report.Exposed = append(e.report.Exposed, Exposure{
				Service: name.String(), Kind: kind, Addresses: addresses, Ports: ports, Clients: clients, By: spec.Policies,
			})
		}
	}
	var ports, onNodes []string
	for _, p := range spec.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		if p.NodePort != 0 {
			onNodes = append(onNodes, fmt.Sprintf("%d/%s", p.NodePort, p.Protocol))
		}
	}
	show("NodePort", nodePorts, everybody, onNodes)
	show("ExternalIP", strings.Join(spec.ExternalIPs, ", "), everybody, ports)
	clients := everybody
	if len(spec.LoadBalancerSourceRanges) > 0 {
		clients = some(spec.LoadBalancerSourceRanges)
	}
	if svc := e.services[name]; svc != nil && svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0 {
		e.remark("%s is of type LoadBalancer and has no address yet: what makes load balancers here has to give it one", name)
	}
	show("LoadBalancerIP", strings.Join(spec.LoadBalancerIPs, ", "), clients, ports)
	if spec.HealthCheckNodePort != 0 {
		show("HealthCheckNodePort", nodePorts, everybody, []string{fmt.Sprintf("%d/TCP", spec.HealthCheckNodePort)})
	}
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
			e.add(Finding{
				Severity: Problem, Name: "NotClosed", Check: CheckExposure, Service: name.String(), Policy: "ServiceProxyPolicy/" + p.Name,
				key: "open " + field + " " + name.String(), causes: []string{"policy ServiceProxyPolicy/" + p.Name, keyNoNodeProxy, keyBehind},
				What: fmt.Sprintf("the policy closes %s of the Service, and they are open", field), passing: true, token: rules.ResourceVersion,
				Do: "kubectl describe spp " + p.Name + "; docs/policies.md#when-it-stops",
			})
		}
	}
}

// claim is a Service that wants an address.
type claim struct {
	service types.NamespacedName
	rules   *v1alpha1.ServiceProxyRules
	what    string
}

// contested finds addresses that belong to nodes, or that several Services want with the
// same port.
func (e *examination) contested() {
	e.nodeAddresses()
	claims := map[string][]claim{}
	for i := range e.ServiceRules {
		rules := &e.ServiceRules[i]
		name, ok := serviceOf(rules)
		if !ok || rules.Spec.Released {
			continue
		}
		for what, addresses := range map[string][]string{
			"a cluster IP": rules.Spec.ClusterIPs, "an external IP": rules.Spec.ExternalIPs, "a load-balancer IP": rules.Spec.LoadBalancerIPs,
		} {
			for _, a := range addresses {
				claims[a] = append(claims[a], claim{name, rules, what})
			}
		}
	}
	for _, address := range slices.SortedFunc(maps.Keys(claims), compareAddresses) {
		e.contestedAt(address, claims[address])
	}
}

func compareAddresses(a, b string) int {
	x, _ := netip.ParseAddr(a)
	y, _ := netip.ParseAddr(b)
	return cmp.Or(x.Compare(y), strings.Compare(a, b))
}

// contestedAt names for each Service that does not get an address and port the one that
// does: the older one.
func (e *examination) contestedAt(address string, claims []claim) {
	if len(claims) < 2 {
		return
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(a.rules.Spec.ServiceCreated.Compare(b.rules.Spec.ServiceCreated.Time), strings.Compare(a.service.String(), b.service.String()))
	})
	taken := map[string]types.NamespacedName{}
	for _, c := range claims {
		for _, p := range c.rules.Spec.Ports {
			port := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
			by, others := taken[port]
			if !others {
				taken[port] = c.service
				continue
			}
			if by == c.service || !e.concerns(c.service) && !e.concerns(by) {
				continue
			}
			e.add(Finding{
				Severity: Problem, Name: "AddressTaken", Check: CheckExposure, Service: c.service.String(),
				What: fmt.Sprintf("%s port %s, %s of the Service, is that of the older Service %s, which gets the connections", address, port, c.what, by),
				Do:   fmt.Sprintf("give one of them another address or port: kubectl edit service -n %s %s", c.service.Namespace, c.service.Name),
			})
		}
	}
}
