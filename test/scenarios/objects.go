package scenarios

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Service is a Service of namespace ns1 in short. Its type follows from what it
// has: LoadBalancer with VIPs, NodePort with NP, else ClusterIP.
type Service struct {
	Name string // default svc1
	CIP  string // its cluster IP
	NP   int32  // the node port of the first port
	XIPs []string
	VIPs []string
	// Ranges are the source ranges of VIPs.
	Ranges []string
	// ETPLocal and ITPLocal are external and internal traffic policy Local.
	ETPLocal, ITPLocal bool
	// HCNP is the health-check node port.
	HCNP int32
	// Affinity is the timeout of session affinity by client.
	Affinity time.Duration
	// Ports are name:port/protocol=target, all but the port optional; default
	// p80:80.
	Ports []string
	// Endpoints are in one slice for each family: L or R (on this node or
	// another), the address, then T (not ready, serving, terminating), X (not
	// ready, not serving, terminating), N (not ready, not serving), S (not ready,
	// serving, not terminating) or P (ready, not serving, terminating), then
	// zone=a,b and node=a,b for hints.
	Endpoints []string
	// Edit changes what is not in this list.
	Edit func(*corev1.Service)
}

const thisNode = "test-node"

func (s *Service) key() string {
	if s.Name == "" {
		return "svc1"
	}
	return s.Name
}

func (s *Service) object() *corev1.Service {
	family := corev1.IPv4Protocol
	if strings.Contains(s.CIP, ":") {
		family = corev1.IPv6Protocol
	}
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns1", Name: s.key(), CreationTimestamp: metav1.Unix(1790000000, 0),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: s.CIP, ClusterIPs: []string{s.CIP},
			IPFamilies: []corev1.IPFamily{family}, ExternalIPs: s.XIPs, LoadBalancerSourceRanges: s.Ranges,
			HealthCheckNodePort: s.HCNP,
		},
	}
	switch {
	case len(s.VIPs) > 0 || s.HCNP != 0:
		o.Spec.Type = corev1.ServiceTypeLoadBalancer
	case s.NP != 0:
		o.Spec.Type = corev1.ServiceTypeNodePort
	}
	for _, ip := range s.VIPs {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	if s.ETPLocal {
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if s.ITPLocal {
		local := corev1.ServiceInternalTrafficPolicyLocal
		o.Spec.InternalTrafficPolicy = &local
	}
	if s.Affinity > 0 {
		seconds := int32(s.Affinity / time.Second)
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		o.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	for _, p := range s.portList() {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: p.name, Port: p.port, Protocol: p.protocol})
	}
	o.Spec.Ports[0].NodePort = s.NP
	if s.Edit != nil {
		s.Edit(o)
	}
	return o
}

// port is a port of a Service in short.
type port struct {
	name         string
	port, target int32
	protocol     corev1.Protocol
}

func (s *Service) portList() []port {
	if len(s.Ports) == 0 {
		return []port{{name: "p80", port: 80, target: 80, protocol: corev1.ProtocolTCP}}
	}
	var out []port
	for _, text := range s.Ports {
		p := port{protocol: corev1.ProtocolTCP}
		rest, target, hasTarget := strings.Cut(text, "=")
		rest, protocol, hasProtocol := strings.Cut(rest, "/")
		if hasProtocol {
			p.protocol = corev1.Protocol(protocol)
		}
		name, number, named := strings.Cut(rest, ":")
		if !named {
			name, number = "", rest
		}
		p.name, p.port = name, number32(number)
		if p.target = p.port; hasTarget {
			p.target = number32(target)
		}
		out = append(out, p)
	}
	return out
}

func number32(text string) int32 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		panic(err)
	}
	return int32(n)
}

// slices are the EndpointSlices of the Service: one for each family, in which
// all ports stand.
func (s *Service) slices() []*discoveryv1.EndpointSlice {
	byFamily := map[discoveryv1.AddressType]*discoveryv1.EndpointSlice{}
	for _, text := range s.Endpoints {
		ep := endpointOf(text)
		family := discoveryv1.AddressTypeIPv4
		if strings.Contains(ep.Addresses[0], ":") {
			family = discoveryv1.AddressTypeIPv6
		}
		if byFamily[family] == nil {
			byFamily[family] = s.slice(strings.ToLower(string(family)), family)
		}
		byFamily[family].Endpoints = append(byFamily[family].Endpoints, ep)
	}
	return slices.Collect(maps.Values(byFamily))
}

// slice is an EndpointSlice of the Service without endpoints.
func (s *Service) slice(suffix string, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns1", Name: s.key() + "-" + suffix,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.key()},
		},
		AddressType: family,
	}
	for _, p := range s.portList() {
		out.Ports = append(out.Ports, slicePort(p.name, p.target, p.protocol))
	}
	return out
}

func slicePort(name string, number int32, protocol corev1.Protocol) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol}
}

// endpointOf reads an endpoint in short.
func endpointOf(text string) discoveryv1.Endpoint {
	words := strings.Fields(text)
	node := "node-" + words[1]
	if words[0] == "L" {
		node = thisNode
	} else if words[0] != "R" {
		panic(fmt.Sprintf("endpoint %q is neither L nor R", text))
	}
	ep := discoveryv1.Endpoint{Addresses: []string{words[1]}, NodeName: &node, Conditions: conditions(true, true, false)}
	for _, word := range words[2:] {
		key, list, _ := strings.Cut(word, "=")
		switch key {
		case "T":
			ep.Conditions = conditions(false, true, true)
		case "X":
			ep.Conditions = conditions(false, false, true)
		case "N":
			ep.Conditions = conditions(false, false, false)
		case "S":
			ep.Conditions = conditions(false, true, false)
		case "P":
			ep.Conditions = conditions(true, false, true)
		case "zone", "node":
			if ep.Hints == nil {
				ep.Hints = &discoveryv1.EndpointHints{}
			}
			for name := range strings.SplitSeq(list, ",") {
				if key == "zone" {
					ep.Hints.ForZones = append(ep.Hints.ForZones, discoveryv1.ForZone{Name: name})
				} else {
					ep.Hints.ForNodes = append(ep.Hints.ForNodes, discoveryv1.ForNode{Name: name})
				}
			}
		default:
			panic(fmt.Sprintf("endpoint %q: what is %s?", text, word))
		}
	}
	return ep
}

func conditions(ready, serving, terminating bool) discoveryv1.EndpointConditions {
	return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

// node is this node's object.
func node(zone string, addresses []netip.Addr) *corev1.Node {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thisNode}}
	if zone != "" {
		o.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	for _, a := range addresses {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	return o
}
