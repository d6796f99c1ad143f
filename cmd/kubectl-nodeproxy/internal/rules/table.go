package rules

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// maxEndpoints is how many endpoints are printed in a list of Services.
const maxEndpoints = 2

// Table prints the report in human-readable form.
func (r *Report) Table(w io.Writer) error {
	l := &output.Lines{}
	head := fmt.Sprintf("Node %s: mode %s, %s, generation %d", r.Node, r.Mode, r.Enforcement, r.Generation)
	if r.Zone != "" {
		head += ", zone " + r.Zone
	}
	if len(r.Policies) > 0 {
		head += ", policies " + strings.Join(r.Policies, ", ")
	}
	l.Linef("%s. Node ports are served on %s.", head, r.NodePortAddresses)
	for _, n := range r.Notes {
		l.Linef("! %s", n)
	}
	switch {
	case r.one:
		for i := range r.Services {
			r.Services[i].full(l)
		}
	case len(r.Services) == 0:
		l.Heading("No Services are desired on this node.")
	default:
		l.Heading("SERVICE\tPORT\tADDRESSES\tPOLICY\tENDPOINTS\tLOCAL\tNOTES")
		for i := range r.Services {
			r.Services[i].short(l)
		}
	}
	if len(r.UnusedObjects) > 0 {
		l.Heading("UNUSED OBJECTS")
		for _, u := range r.UnusedObjects {
			l.Linef("%s: %s", u.Name, u.Message)
		}
	}
	return l.Write(w)
}

func (s *Service) short(l *output.Lines) {
	besides := strings.Join(s.besides(), "; ")
	name := s.Namespace + "/" + s.Name
	if len(s.Ports) == 0 {
		l.Linef("%s\tnone\t%s\t\t\t\t%s", name, s.ClusterIP, besides)
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		l.Linef("%s\t%s\t%s\t%s\t%s\t%s\t%s", name, p.label(), p.addresses(), s.policy(p), endpoints(p.UsesCluster, p.ClusterEndpoints), endpoints(p.UsesLocal, p.LocalEndpoints), besides)
		besides = "" // the same for all ports
	}
}

// label is the name of a port: 80/TCP web.
func (p *Port) label() string {
	text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	if p.Name != "" {
		text += " " + p.Name
	}
	return text
}

// addresses lists addresses without the port, which has its own column.
func (p *Port) addresses() string {
	var texts []string
	for _, a := range p.Addresses {
		if a.Type == dataplane.NodePort {
			texts = append(texts, "node port "+a.Address)
			continue
		}
		what := map[dataplane.Kind]string{dataplane.ExternalIP: "external ", dataplane.LoadBalancerIP: "load balancer "}[a.Type]
		texts = append(texts, what+netip.MustParseAddrPort(a.Address).Addr().String())
	}
	return cmp.Or(strings.Join(texts, ", "), "none")
}

// policy is the traffic policy, or the internal and the external one.
func (s *Service) policy(p *Port) string {
	external := slices.ContainsFunc(p.Addresses, func(a Address) bool { return a.Type != dataplane.ClusterIP })
	if s.InternalTrafficPolicy == s.ExternalTrafficPolicy || !external {
		return string(s.InternalTrafficPolicy)
	}
	return fmt.Sprintf("internal %s, external %s", s.InternalTrafficPolicy, s.ExternalTrafficPolicy)
}

func endpoints(used bool, list []netip.AddrPort) string {
	if !used {
		return "-"
	}
	return some(list)
}

func some(endpoints []netip.AddrPort) string {
	return cmp.Or(text.Some(endpoints, maxEndpoints), "none")
}

// besides lists further properties of a Service.
func (s *Service) besides() []string {
	var texts []string
	add := func(format string, args ...any) { texts = append(texts, fmt.Sprintf(format, args...)) }
	if len(s.Ports) == 0 {
		add("its object has no usable port, so it is not served")
	}
	if s.AffinitySeconds > 0 {
		add("session affinity ClientIP, %d s", s.AffinitySeconds)
	}
	if len(s.SourceRanges) > 0 && len(s.LoadBalancerIPs) > 0 {
		add("load balancer for %s only", text.Some(s.SourceRanges, maxEndpoints))
	}
	if s.HealthCheckNodePort != 0 {
		add("health check %d counts %s", s.HealthCheckNodePort, text.Count(s.LocalReadyEndpoints, "local endpoint"))
	}
	if s.Userspace {
		add("served by the agent itself, endpoints see the node's address")
	}
	if s.IPVSScheduler != "" {
		add("IPVS scheduler %s", s.IPVSScheduler)
	}
	if len(s.Policies) > 0 {
		add("policies %s", strings.Join(s.Policies, ", "))
	}
	for _, lost := range s.Lost {
		add("%s is served by %s", lost.Address, lost.Owner)
	}
	for _, p := range s.Problems {
		add("%s", p)
	}
	return texts
}

func (s *Service) full(l *output.Lines) {
	l.Heading(fmt.Sprintf("Service %s/%s, %s", s.Namespace, s.Name, s.Family))
	for _, text := range s.besides() {
		l.Linef("  %s", text)
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		l.Heading("Port " + p.label())
		if len(p.Addresses) == 0 {
			l.Linef("  not served")
		}
		for _, a := range p.Addresses {
			l.Linef("  %s\t%s\tpolicy %s: %s", a.Type, a.Address, a.TrafficPolicy, p.leadsTo(a.TrafficPolicy))
		}
		if len(p.Endpoints) == 0 {
			l.Linef("  no ready or terminating endpoint")
			continue
		}
		l.Heading("  ENDPOINT\tSTATE\tON THIS NODE\tPOLICY CLUSTER\tPOLICY LOCAL")
		for _, e := range p.Endpoints {
			l.Linef("  %s\t%s\t%s\t%s\t%s", e.Address, e.State, map[bool]string{true: "yes", false: "no"}[e.OnNode], e.Cluster.String(), e.Local.String())
		}
	}
}

// leadsTo is what happens to connections under a policy.
func (p *Port) leadsTo(policy v1alpha1.TrafficPolicy) string {
	list := p.ClusterEndpoints
	if policy == v1alpha1.TrafficPolicyLocal {
		list = p.LocalEndpoints
	}
	switch {
	case len(list) > 0:
		return text.Count(len(list), "endpoint")
	case policy == v1alpha1.TrafficPolicyLocal && len(p.Endpoints) > 0:
		return "no endpoint on this node: connections are dropped"
	default:
		return "no endpoint: connections are rejected"
	}
}
