// Package rules says what a node is to hold, combined as its agent does, and how that
// differs from what the node reports, or from what another node is to hold. It is
// pure: objects in, reports out.
package rules

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Report is what a node is to hold.
type Report struct {
	Node string `json:"node"`
	// Mode, Enforcement and Policies are those of the settings that it is given.
	Mode        v1alpha1.ProxyMode   `json:"mode"`
	Enforcement v1alpha1.Enforcement `json:"enforcement"`
	Policies    []string             `json:"policies,omitempty"`
	Zone        string               `json:"zone,omitempty"`
	// NodePorts says on which addresses node ports answer.
	NodePorts string `json:"nodePorts"`
	// Generation is that of the node's NodeProxyRules.
	Generation int64 `json:"generation"`
	// Notes say in what the node itself may differ from this.
	Notes []string `json:"notes,omitempty"`
	// Services are sorted by namespace and name, once for each of their IP families.
	Services []Service `json:"services"`
	// Unused are objects of which nothing is used, and why.
	Unused []Unused `json:"unused,omitempty"`

	one bool // it is about one Service, which is printed in full
}

// Unused is an object of which nothing is used.
type Unused struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Service is what a node is to hold of a Service in one IP family.
type Service struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Family    dataplane.Family `json:"family"`
	// ClusterIP, ExternalIPs and LoadBalancerIPs are its addresses.
	ClusterIP       netip.Addr   `json:"clusterIP"`
	ExternalIPs     []netip.Addr `json:"externalIPs,omitempty"`
	LoadBalancerIPs []netip.Addr `json:"loadBalancerIPs,omitempty"`
	// SourceRanges may use LoadBalancerIPs. None: everybody.
	SourceRanges          []netip.Prefix         `json:"sourceRanges,omitempty"`
	InternalTrafficPolicy v1alpha1.TrafficPolicy `json:"internalTrafficPolicy"`
	ExternalTrafficPolicy v1alpha1.TrafficPolicy `json:"externalTrafficPolicy"`
	AffinitySeconds       int32                  `json:"affinitySeconds,omitempty"`
	HealthCheckNodePort   uint16                 `json:"healthCheckNodePort,omitempty"`
	// LocalReady is how many endpoints the health check counts on this node.
	LocalReady    int      `json:"localReady,omitempty"`
	IPVSScheduler string   `json:"ipvsScheduler,omitempty"`
	Policies      []string `json:"policies,omitempty"`
	Ports         []Port   `json:"ports,omitempty"`
	// Lost are claims that another Service has.
	Lost []Lost `json:"lost,omitempty"`
	// Problems say what of the object cannot be used.
	Problems []string `json:"problems,omitempty"`
}

// Port is one port of a Service.
type Port struct {
	Name     string            `json:"name,omitempty"`
	Protocol v1alpha1.Protocol `json:"protocol"`
	Port     uint16            `json:"port"`
	NodePort uint16            `json:"nodePort,omitempty"`
	// Addresses are those at which it answers, each with what it is.
	Addresses []Address `json:"addresses"`
	// Cluster and Local are the endpoints by traffic policy. Local is absent where
	// no traffic is under that policy, and Cluster likewise.
	Cluster []netip.AddrPort `json:"cluster,omitempty"`
	Local   []netip.AddrPort `json:"local,omitempty"`
	// UsesCluster and UsesLocal: some traffic is under that policy.
	UsesCluster bool `json:"usesCluster"`
	UsesLocal   bool `json:"usesLocal"`
	// Endpoints say of each endpoint whether it is used, and why not: with a
	// Service named only.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// Address is an address, or the node's own ones, at which a port answers.
type Address struct {
	// Kind is ClusterIP, ExternalIP, LoadBalancerIP or NodePort.
	Kind dataplane.Kind `json:"kind"`
	// At is address:port; of a node port the port alone.
	At string `json:"at"`
	// Policy is the traffic policy of what comes by this address.
	Policy v1alpha1.TrafficPolicy `json:"policy"`
}

// Lost is an address and port that another Service has the older claim to.
type Lost struct {
	At string `json:"at"`
	To string `json:"to"`
}

// families are both IP families, in the order in which they are printed.
func families() []dataplane.Family { return []dataplane.Family{dataplane.IPv4, dataplane.IPv6} }

// sets are what a node is to hold, by IP family.
type sets map[dataplane.Family]*combine.Set

func whole(node *v1alpha1.NodeProxyRules, services []v1alpha1.ServiceProxyRules) (sets, error) {
	all := sets{}
	for _, f := range families() {
		set, err := combine.Whole(node, services, f)
		if err != nil {
			return nil, fmt.Errorf("what the node is to hold cannot be told: %w", err)
		}
		all[f] = set
	}
	return all, nil
}

// Of returns what a node of a cluster is to hold. With a Service named it is that alone,
// in full.
func Of(node *v1alpha1.NodeProxyRules, o *cluster.Objects, only *dataplane.ServiceName) (*Report, error) {
	services := o.ServiceRules
	all, err := whole(node, services)
	if err != nil {
		return nil, err
	}
	settings := v1alpha1.CompleteSettings(&node.Spec.Settings)
	r := &Report{
		Node: node.Name, Mode: *settings.Mode, Enforcement: *settings.Enforcement, Policies: node.Spec.Policies, Zone: node.Spec.Node.Zone,
		NodePorts: nodePortsAnswerAt(settings, node.Spec.Node.Addresses), Generation: node.Generation,
		Notes: notesOf(node, all, o), Services: []Service{}, one: only != nil,
	}
	objects := map[dataplane.ServiceName]*v1alpha1.ServiceProxyRules{}
	for i := range services {
		if name, ok := combine.ServiceOf(services[i].Name); ok {
			objects[name] = &services[i]
		}
	}
	if lonely := withoutObject(node, objects); only == nil && len(lonely) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("endpoints on this node of Services that have no ServiceProxyRules count for nothing: %s", output.Some(lonely, maxExamples)))
	}
	for _, f := range families() {
		for name, svc := range all[f].Services {
			if only != nil && name != *only {
				continue
			}
			s := service(svc, all[f], objects[name])
			if only != nil {
				explainAll(&s, svc, objects[name], node)
			}
			r.Services = append(r.Services, s)
		}
	}
	slices.SortFunc(r.Services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Family, b.Family))
	})
	r.Unused = unused(all, services, only)
	return r, nil
}

// unused lists objects, or the one of a Service, of which nothing is used, sorted by name.
func unused(all sets, services []v1alpha1.ServiceProxyRules, only *dataplane.ServiceName) []Unused {
	var list []Unused
	for i := range services {
		object := services[i].Name
		name, _ := combine.ServiceOf(object)
		if only != nil && name != *only {
			continue
		}
		why := all[dataplane.IPv4].LeftOut[object] // of both families
		if why == "" && all[dataplane.IPv4].Services[name] == nil && all[dataplane.IPv6].Services[name] == nil {
			why = noClusterIP(all, name)
		}
		if why != "" {
			list = append(list, Unused{Name: object, Why: why})
		}
	}
	slices.SortFunc(list, func(a, b Unused) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// withoutObject lists Services that have endpoints on the node, and no object.
func withoutObject(node *v1alpha1.NodeProxyRules, objects map[dataplane.ServiceName]*v1alpha1.ServiceProxyRules) []string {
	var names []string
	for name := range combine.Members(node.Spec.Services) {
		if objects[name] == nil {
			names = append(names, name.String())
		}
	}
	slices.Sort(names)
	return names
}

// noClusterIP says why nothing is held of a Service whose object is used.
func noClusterIP(all sets, name dataplane.ServiceName) string {
	why := "its object has no cluster IP, so that nodes hold nothing of it"
	if problems := all[dataplane.IPv4].Problems[name]; len(problems) > 0 {
		why += ": " + strings.Join(problems, "; ")
	}
	return why
}

func service(svc *dataplane.Service, set *combine.Set, object *v1alpha1.ServiceProxyRules) Service {
	s := Service{
		Namespace: svc.Name.Namespace, Name: svc.Name.Name, Family: set.Family,
		ClusterIP: svc.ClusterIP, ExternalIPs: svc.ExternalIPs, LoadBalancerIPs: svc.LoadBalancerIPs, SourceRanges: svc.SourceRanges,
		InternalTrafficPolicy: policy(svc.InternalLocal), ExternalTrafficPolicy: policy(svc.ExternalLocal),
		AffinitySeconds: svc.AffinitySeconds, HealthCheckNodePort: svc.HealthCheckNodePort, LocalReady: svc.LocalReady,
		IPVSScheduler: svc.IPVSScheduler, Policies: object.Spec.Policies, Problems: set.Problems[svc.Name],
		Lost: lost(svc, set, &object.Spec),
	}
	for i := range svc.Ports {
		s.Ports = append(s.Ports, port(svc, &svc.Ports[i], set))
	}
	return s
}

func policy(local bool) v1alpha1.TrafficPolicy {
	if local {
		return v1alpha1.TrafficPolicyLocal
	}
	return v1alpha1.TrafficPolicyCluster
}

func port(svc *dataplane.Service, p *dataplane.Port, set *combine.Set) Port {
	out := Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort, Cluster: p.Cluster, Local: p.Local, Addresses: []Address{}}
	mode := modes.Of(set.Mode)
	for d := range svc.DestinationsOf(p) {
		at := d.AddrPort().String()
		switch {
		case d.Kind == dataplane.NodePort:
			at = fmt.Sprint(d.Number)
		case mode.Unserved(svc, set.Node.Addresses, d.Address):
			continue
		}
		out.Addresses = append(out.Addresses, Address{Kind: d.Kind, At: at, Policy: policy(d.Local)})
	}
	external := svc.ExternallyAccessible(p)
	out.UsesCluster = !svc.InternalLocal || external
	out.UsesLocal = svc.InternalLocal || svc.ExternalLocal && external
	return out
}

// nodePortsAnswerAt says on which addresses of the node node ports answer.
func nodePortsAnswerAt(settings *v1alpha1.ProxySettings, addresses []string) string {
	switch ports := settings.NodePorts; *ports.AddressMode {
	case v1alpha1.NodePortsPrimary:
		return "the first address of each family of " + cmp.Or(strings.Join(addresses, ", "), "a Node that has none, so all of its addresses")
	case v1alpha1.NodePortsCIDRs:
		return "local addresses in " + strings.Join(ports.CIDRs, ", ")
	default:
		return "all local addresses"
	}
}
