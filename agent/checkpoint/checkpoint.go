package checkpoint

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

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

// WithoutLocalEndpoints returns the set without this node's endpoints: after a reboot its pods have
// other addresses. What it shares with s is not changed.
func (s *Set) WithoutLocalEndpoints() *Set {
	out := &Set{Header: s.Header, Rules: s.Rules.DeepCopy(), Services: make([]*v1alpha1.ServiceProxyRules, len(s.Services))}
	localEndpoints := make(map[string][]v1alpha1.PortLocalEndpoints, len(s.Rules.Spec.LocalEndpoints))
	for _, m := range s.Rules.Spec.LocalEndpoints {
		name := v1alpha1.ServiceProxyRulesName(m.Namespace, m.Name)
		localEndpoints[name] = append(localEndpoints[name], m.Ports...)
	}
	out.Rules.Spec.LocalEndpoints = nil
	for i, object := range s.Services {
		out.Services[i] = withoutLocalEndpoints(object, localEndpoints[object.Name])
	}
	return out
}

func withoutLocalEndpoints(object *v1alpha1.ServiceProxyRules, localEndpoints []v1alpha1.PortLocalEndpoints) *v1alpha1.ServiceProxyRules {
	if len(localEndpoints) == 0 {
		return object
	}
	type localEndpoint struct{ port, at string }
	local := sets.Set[localEndpoint]{}
	for _, m := range localEndpoints {
		for _, at := range m.Endpoints {
			local.Insert(localEndpoint{m.Name + "/" + string(m.Protocol), canonical(at)})
		}
	}
	without := func(groups []v1alpha1.EndpointGroup, isLocal func(g *v1alpha1.EndpointGroup, address string) bool) []v1alpha1.EndpointGroup {
		for i := range groups {
			g := &groups[i]
			g.Addresses = slices.DeleteFunc(g.Addresses, func(a string) bool { return isLocal(g, a) })
		}
		return slices.DeleteFunc(groups, func(g v1alpha1.EndpointGroup) bool { return len(g.Addresses) == 0 })
	}
	out := object.DeepCopy()
	spec := &out.Spec
	protocols := map[string]v1alpha1.Protocol{}
	for i := range spec.Ports {
		port := &spec.Ports[i]
		name := port.Name + "/" + string(port.Protocol)
		protocols[port.Name] = port.Protocol
		port.Endpoints = without(port.Endpoints, func(_ *v1alpha1.EndpointGroup, a string) bool { return local.Has(localEndpoint{name, canonical(a)}) })
	}
	spec.Endpoints = without(spec.Endpoints, func(g *v1alpha1.EndpointGroup, a string) bool {
		for name, target := range g.TargetPorts { // a pod has all its ports on its node
			if local.Has(localEndpoint{name + "/" + string(protocols[name]), canonical(net.JoinHostPort(a, strconv.Itoa(int(target))))}) {
				return true
			}
		}
		return false
	})
	return out
}

// canonical is the canonical form of an endpoint.
func canonical(endpoint string) string {
	if parsed, err := netip.ParseAddrPort(endpoint); err == nil {
		return parsed.String()
	}
	return strings.TrimSpace(endpoint)
}
