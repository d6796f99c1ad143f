package rules

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

const (
	// maxMessage is how much of a condition's message is quoted.
	maxMessage = 500
	// maxExamples is how many examples are quoted.
	maxExamples = 3
)

// Report is the desired rules of a node.
type Report struct {
	metav1.TypeMeta `json:",inline"`
	Node            string `json:"node"`
	// Mode, Enforcement and Policies are those of the node's settings.
	Mode        v1alpha1.ProxyMode   `json:"mode"`
	Enforcement v1alpha1.Enforcement `json:"enforcement"`
	Policies    []string             `json:"policies,omitempty"`
	Zone        string               `json:"zone,omitempty"`
	// NodePortAddresses reports on which addresses node ports are served.
	NodePortAddresses string `json:"nodePortAddresses"`
	// Generation is that of the node's NodeProxyRules.
	Generation int64 `json:"generation"`
	// Services are sorted by namespace and name, with an entry for each IP family.
	Services []Service `json:"services"`
	// UnusedObjects are ServiceProxyRules without effect.
	UnusedObjects []Unused `json:"unusedObjects,omitempty"`
	// Notes explain why the node may differ.
	Notes []string `json:"notes,omitempty"`

	one bool // for one Service, which is printed in full
}

// Unused is an object without effect.
type Unused struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

// Service is the desired rules of a Service in one IP family.
type Service struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Family    dataplane.Family `json:"family"`
	// ClusterIP, ExternalIPs and LoadBalancerIPs are its addresses.
	ClusterIP       netip.Addr   `json:"clusterIP"`
	ExternalIPs     []netip.Addr `json:"externalIPs,omitempty"`
	LoadBalancerIPs []netip.Addr `json:"loadBalancerIPs,omitempty"`
	// SourceRanges may use LoadBalancerIPs. None: all clients.
	SourceRanges          []netip.Prefix         `json:"sourceRanges,omitempty"`
	InternalTrafficPolicy v1alpha1.TrafficPolicy `json:"internalTrafficPolicy"`
	ExternalTrafficPolicy v1alpha1.TrafficPolicy `json:"externalTrafficPolicy"`
	AffinitySeconds       int32                  `json:"affinitySeconds,omitempty"`
	HealthCheckNodePort   uint16                 `json:"healthCheckNodePort,omitempty"`
	// LocalReadyEndpoints is what the health check counts on this node.
	LocalReadyEndpoints int      `json:"localReadyEndpoints,omitempty"`
	IPVSScheduler       string   `json:"ipvsScheduler,omitempty"`
	Userspace           bool     `json:"userspace,omitempty"`
	Policies            []string `json:"policies,omitempty"`
	Ports               []Port   `json:"ports,omitempty"`
	// Lost are claims that another Service owns.
	Lost []Lost `json:"lost,omitempty"`
	// Problems are unusable parts of the object.
	Problems []string `json:"problems,omitempty"`
}

// Port is one port of a Service.
type Port struct {
	Name     string            `json:"name,omitempty"`
	Protocol v1alpha1.Protocol `json:"protocol"`
	Port     uint16            `json:"port"`
	NodePort uint16            `json:"nodePort,omitempty"`
	// Addresses are those at which it is served.
	Addresses []Address `json:"addresses"`
	// ClusterEndpoints and LocalEndpoints are the endpoints by traffic policy. They are absent
	// if no traffic has that policy.
	ClusterEndpoints []netip.AddrPort `json:"clusterEndpoints,omitempty"`
	LocalEndpoints   []netip.AddrPort `json:"localEndpoints,omitempty"`
	// UsesCluster and UsesLocal: some traffic has that policy.
	UsesCluster bool `json:"usesCluster"`
	UsesLocal   bool `json:"usesLocal"`
	// Endpoints explain whether each endpoint is used. Only set for a single Service.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// Address is an address, or the node's own ones, at which a port is served.
type Address struct {
	// Type is ClusterIP, ExternalIP, LoadBalancerIP or NodePort.
	Type dataplane.Kind `json:"type"`
	// Address is address:port; for a node port only the port.
	Address string `json:"address"`
	// TrafficPolicy applies to connections to this address.
	TrafficPolicy v1alpha1.TrafficPolicy `json:"trafficPolicy"`
}

// Lost is an address and port that another Service owns.
type Lost struct {
	Address string `json:"address"`
	Owner   string `json:"owner"`
}

// families are both IP families, in the order in which they are printed.
func families() []dataplane.Family { return []dataplane.Family{dataplane.IPv4, dataplane.IPv6} }

// byFamily is the desired rules of a node, by IP family.
type byFamily map[dataplane.Family]*combine.Set

func whole(node *v1alpha1.NodeProxyRules, services []v1alpha1.ServiceProxyRules) (byFamily, error) {
	all := byFamily{}
	for _, f := range families() {
		set, err := combine.Whole(node, services, f)
		if err != nil {
			return nil, fmt.Errorf("the desired rules of the node cannot be computed: %w", err)
		}
		all[f] = set
	}
	return all, nil
}

// Of returns the desired rules of a node, or those of one Service in full.
func Of(node *v1alpha1.NodeProxyRules, o *cluster.Objects, only *dataplane.ServiceName) (*Report, error) {
	services := o.ServiceRules
	all, err := whole(node, services)
	if err != nil {
		return nil, err
	}
	settings := v1alpha1.CompleteSettings(&node.Spec.Settings)
	r := &Report{
		TypeMeta: output.Type("NodeRules"), Node: node.Name, Mode: *settings.Mode, Enforcement: *settings.Enforcement, Policies: node.Spec.Policies, Zone: node.Spec.Node.Zone,
		NodePortAddresses: nodePortAddresses(settings, node.Spec.Node.Addresses), Generation: node.Generation,
		Notes: notes(node, all, o), Services: []Service{}, one: only != nil,
	}
	objects := map[dataplane.ServiceName]*v1alpha1.ServiceProxyRules{}
	for i := range services {
		if name, ok := combine.ServiceOf(services[i].Name); ok {
			objects[name] = &services[i]
		}
	}
	var lonely []string
	byService, _ := combine.LocalEndpoints(node.Spec.LocalEndpoints)
	for name := range byService {
		if objects[name] == nil {
			lonely = append(lonely, name.String())
		}
	}
	slices.Sort(lonely)
	if only == nil && len(lonely) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("local endpoints of Services without ServiceProxyRules have no effect: %s", text.Some(lonely, maxExamples)))
	}
	for _, f := range families() {
		for name, svc := range all[f].Services {
			if only != nil && name != *only {
				continue
			}
			s := service(svc, all[f], objects[name])
			for i := range s.Ports {
				if o := portOf(&objects[name].Spec, &svc.Ports[i]); only != nil && o != nil {
					s.Ports[i].Endpoints = explain(&s.Ports[i], &svc.Ports[i], objects[name].Spec.EndpointsOf(o), f, node)
				}
			}
			r.Services = append(r.Services, s)
		}
	}
	slices.SortFunc(r.Services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Family, b.Family))
	})
	r.UnusedObjects = unused(all, services, only)
	return r, nil
}

// unused lists objects, or the one of a Service, without effect, sorted by name.
func unused(all byFamily, services []v1alpha1.ServiceProxyRules, only *dataplane.ServiceName) []Unused {
	var list []Unused
	for i := range services {
		object := services[i].Name
		name, _ := combine.ServiceOf(object)
		if only != nil && name != *only {
			continue
		}
		why := all[dataplane.IPv4].LeftOut[object] // for both families
		if why == "" && all[dataplane.IPv4].Services[name] == nil && all[dataplane.IPv6].Services[name] == nil {
			why = "its object has no cluster IP, so nodes do not program it"
			if problems := all[dataplane.IPv4].Problems[name]; len(problems) > 0 {
				why += ": " + strings.Join(problems, "; ")
			}
		}
		if why != "" {
			list = append(list, Unused{Name: object, Message: why})
		}
	}
	slices.SortFunc(list, func(a, b Unused) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func service(svc *dataplane.Service, set *combine.Set, object *v1alpha1.ServiceProxyRules) Service {
	s := Service{
		Namespace: svc.Name.Namespace, Name: svc.Name.Name, Family: set.Family,
		ClusterIP: svc.ClusterIP, ExternalIPs: svc.ExternalIPs, LoadBalancerIPs: svc.LoadBalancerIPs, SourceRanges: svc.SourceRanges,
		InternalTrafficPolicy: policy(svc.InternalLocal), ExternalTrafficPolicy: policy(svc.ExternalLocal),
		AffinitySeconds: svc.AffinitySeconds, HealthCheckNodePort: svc.HealthCheckNodePort, LocalReadyEndpoints: svc.LocalReady,
		IPVSScheduler: svc.IPVSScheduler, Userspace: svc.Userspace, Policies: object.Spec.Policies, Problems: set.Problems[svc.Name],
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
	out := Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort, ClusterEndpoints: p.Cluster, LocalEndpoints: p.Local, Addresses: []Address{}}
	mode := modes.Of(set.Mode)
	for d := range svc.DestinationsOf(p) {
		at := d.AddrPort().String()
		switch {
		case d.Kind == dataplane.NodePort:
			at = fmt.Sprint(d.Number)
		case mode.Unserved(svc, set.Node.Addresses, d.Address):
			continue
		}
		out.Addresses = append(out.Addresses, Address{Type: d.Kind, Address: at, TrafficPolicy: policy(d.Local)})
	}
	external := svc.ExternallyAccessible(p)
	out.UsesCluster = !svc.InternalLocal || external
	out.UsesLocal = svc.InternalLocal || svc.ExternalLocal && external
	return out
}

// nodePortAddresses reports on which addresses of the node node ports are served.
func nodePortAddresses(settings *v1alpha1.ProxySettings, addresses []string) string {
	switch ports := settings.NodePorts; *ports.AddressMode {
	case v1alpha1.NodePortsPrimary:
		return "the first address of each family of " + cmp.Or(strings.Join(addresses, ", "), "a Node without addresses, that is all local addresses")
	case v1alpha1.NodePortsCIDRs:
		return "local addresses in " + strings.Join(ports.CIDRs, ", ")
	default:
		return "all local addresses"
	}
}

// notes explain why a node may differ from its desired rules.
func notes(node *v1alpha1.NodeProxyRules, all byFamily, o *cluster.Objects) []string {
	list := o.Notes(node, all[dataplane.IPv4].Mode)
	if old := cluster.TooOld(node); old != "" {
		list = append(list, old)
	}
	status := &node.Status
	if rejected := status.Rejected; rejected != nil && rejected.Count > 0 {
		list = append(list, fmt.Sprintf("its kernel rejects %s: %s", text.Count(int(rejected.Count), "Service"), text.Some(rejected.Examples, maxExamples)))
	}
	for _, f := range families() {
		if needed := len(all[f].Services); needed > 0 && len(status.Conditions) > 0 && !slices.Contains(status.Families, string(f)) {
			list = append(list, fmt.Sprintf("%s is not programmed there, but is needed by %s", f, text.Count(needed, "Service")))
		}
	}
	return list
}
