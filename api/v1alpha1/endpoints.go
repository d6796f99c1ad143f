package v1alpha1

import (
	"iter"
	"net"
	"strconv"
)

// PortEndpoints are endpoints of one port of a Service.
// +kubebuilder:object:generate=false
type PortEndpoints struct {
	*EndpointGroup
	// TargetPort is that of all addresses. 0: each address contains its own (formatVersion 1).
	TargetPort int32
}

// All yields the endpoints as ip:port, IPv6 as [ip]:port.
func (e PortEndpoints) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, a := range e.Addresses {
			if e.TargetPort != 0 {
				a = net.JoinHostPort(a, strconv.Itoa(int(e.TargetPort)))
			}
			if !yield(a) {
				return
			}
		}
	}
}

// Effective is the state of the endpoints, completed with its default.
func (g *EndpointGroup) Effective() EndpointState {
	if g.State == "" {
		return EndpointReady
	}
	return g.State
}

// EndpointsOf returns the endpoints of one of ports, in any format.
func (s *ServiceProxyRulesSpec) EndpointsOf(port *ServicePort) []PortEndpoints {
	var out []PortEndpoints
	for i := range port.Endpoints {
		out = append(out, PortEndpoints{EndpointGroup: &port.Endpoints[i]})
	}
	for i := range s.Endpoints {
		if target, serves := s.Endpoints[i].TargetPorts[port.Name]; serves {
			out = append(out, PortEndpoints{EndpointGroup: &s.Endpoints[i], TargetPort: target})
		}
	}
	return out
}

// EndpointsByPort returns the endpoints of all ports, in their order, in time that grows with their
// number alone.
func (s *ServiceProxyRulesSpec) EndpointsByPort() [][]PortEndpoints {
	out := make([][]PortEndpoints, len(s.Ports))
	byName := make(map[string]int, len(s.Ports))
	for i := range s.Ports {
		port := &s.Ports[i]
		byName[port.Name] = i
		for j := range port.Endpoints {
			out[i] = append(out[i], PortEndpoints{EndpointGroup: &port.Endpoints[j]})
		}
	}
	for i := range s.Endpoints {
		for name, target := range s.Endpoints[i].TargetPorts {
			if port, known := byName[name]; known {
				out[port] = append(out[port], PortEndpoints{EndpointGroup: &s.Endpoints[i], TargetPort: target})
			}
		}
	}
	return out
}
