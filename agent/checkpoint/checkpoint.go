// Package checkpoint has the agent's last complete state on the node's disk, for an agent that
// starts while it cannot read its objects from the API.
//
// Where to look:
//
//   - checkpoint.go: what it consists of; identity.go: whether it is of this boot
//   - codec.go, file.go: its format, and how it is written in one piece
//   - disk.go: access to a disk that may hang
//   - recovery: when it is written and used
package checkpoint

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// MaxAge is how old a checkpoint may be and still be used.
const MaxAge = 24 * time.Hour

// Header describes a checkpoint.
type Header struct {
	// Node is the name of the Node whose agent wrote it.
	Node string `json:"node"`
	// Written is when all of it was known to be in the API.
	Written time.Time `json:"written"`
	// Identity is the boot and the network namespace in which it was written.
	Identity
	// ConflictingProxy: another proxy was active, and the agent wrote nothing.
	ConflictingProxy bool `json:"conflictingProxy"`
	// Services is their number, NamesHash the sum of v1alpha1.NameHash of the names of their
	// objects.
	Services  int    `json:"services"`
	NamesHash uint64 `json:"namesHash"`
}

// Age is how old the checkpoint is; one from the future, after the clock was set back, is fresh.
func (h *Header) Age(now time.Time) time.Duration { return max(0, now.Sub(h.Written)) }

// Set is the last complete state of an agent.
type Set struct {
	Header
	// Rules is the node's own object as it was last accepted, without status.
	Rules *v1alpha1.NodeProxyRules
	// Services are the objects of all Services, including retained ones.
	Services []*v1alpha1.ServiceProxyRules
}

// Restorable is a Set as it can be used here and now.
type Restorable struct {
	*Set
	// Rebooted: since it was written the rules in the kernel are gone, and this node's pods
	// have other addresses. The Set is without its local endpoints.
	Rebooted bool
	// Why it is used, human-readable.
	Why string
}

// name counts the Services in the header.
func (s *Set) name() {
	s.Header.Services, s.NamesHash = len(s.Services), 0
	for _, o := range s.Services {
		s.NamesHash += v1alpha1.NameHash(o.Name)
	}
}

// WithoutMembers returns the set without this node's endpoints: after a reboot its pods have
// other addresses. What it shares with s is not changed.
func (s *Set) WithoutMembers() *Set {
	out := &Set{Header: s.Header, Rules: s.Rules.DeepCopy(), Services: make([]*v1alpha1.ServiceProxyRules, len(s.Services))}
	members := make(map[string][]v1alpha1.PortLocalEndpoints, len(s.Rules.Spec.LocalEndpoints))
	for _, m := range s.Rules.Spec.LocalEndpoints {
		name := v1alpha1.ServiceProxyRulesName(m.Namespace, m.Name)
		members[name] = append(members[name], m.Ports...)
	}
	out.Rules.Spec.LocalEndpoints = nil
	for i, object := range s.Services {
		out.Services[i] = withoutMembers(object, members[object.Name])
	}
	return out
}

func withoutMembers(object *v1alpha1.ServiceProxyRules, members []v1alpha1.PortLocalEndpoints) *v1alpha1.ServiceProxyRules {
	if len(members) == 0 {
		return object
	}
	out := object.DeepCopy()
	for i := range out.Spec.Ports {
		port := &out.Spec.Ports[i]
		local := map[string]struct{}{}
		for _, m := range members {
			if m.Name == port.Name && m.Protocol == port.Protocol {
				for _, endpoint := range m.Endpoints {
					local[canonical(endpoint)] = struct{}{}
				}
			}
		}
		for j := range port.Endpoints {
			group := &port.Endpoints[j]
			group.Addresses = slices.DeleteFunc(group.Addresses, func(endpoint string) bool {
				_, here := local[canonical(endpoint)]
				return here
			})
		}
		port.Endpoints = slices.DeleteFunc(port.Endpoints, func(g v1alpha1.EndpointGroup) bool { return len(g.Addresses) == 0 })
	}
	return out
}

// canonical is the canonical form of an endpoint.
func canonical(endpoint string) string {
	if parsed, err := netip.ParseAddrPort(endpoint); err == nil {
		return parsed.String()
	}
	return strings.TrimSpace(endpoint)
}
