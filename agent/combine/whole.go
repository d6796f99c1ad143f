package combine

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Set is the desired state of one IP family of a node by its objects alone.
type Set struct {
	Family   dataplane.Family
	NodeName string
	Mode     v1alpha1.ProxyMode
	Node     dataplane.Node
	Services map[dataplane.ServiceName]*dataplane.Service
	// Problems describe what in a Service's object cannot be used.
	Problems map[dataplane.ServiceName][]string
	// LeftOut is why nothing of a ServiceProxyRules, by its name, is used.
	LeftOut map[string]string
	Holders Holders
}

// Holders has the Service of each claim by the objects alone: an agent with retained rules may decide
// otherwise.
type Holders struct{ claims Registry[*whole] }

// HoldersOf reads the claims of Services, without those that agents would leave out.
func HoldersOf(services []v1alpha1.ServiceProxyRules) Holders {
	_, holders, _ := readAll(services)
	return holders
}

// Of returns the Service that has a claim.
func (h Holders) Of(claim Claim) (dataplane.ServiceName, bool) {
	holder, found := h.claims.Holder(claim)
	if !found {
		return dataplane.ServiceName{}, false
	}
	return holder.name, true
}

// At returns the Service that has a port at one of the addresses of its own or another Service's
// rules: at an address of a Node, the one whose node port it is.
func (h Holders) At(rules *v1alpha1.ServiceProxyRulesSpec, claim Claim) (dataplane.ServiceName, bool) {
	if slices.Contains(rules.NodeAddresses, claim.Address.String()) {
		if name, found := h.Of(nodePortClaim(claim.Port, claim.Protocol, dataplane.FamilyOf(claim.Address))); found {
			return name, true
		}
	}
	return h.Of(claim)
}

// readAll returns the usable objects, and by name why others cannot be used.
func readAll(services []v1alpha1.ServiceProxyRules) (all []*whole, holders Holders, leftOut map[string]string) {
	all = make([]*whole, 0, len(services))
	holders, leftOut = Holders{claims: Registry[*whole]{}}, map[string]string{}
	for i := range services {
		w, why := known(&services[i])
		if why != "" {
			leftOut[services[i].Name] = why
			continue
		}
		all = append(all, w)
		holders.claims.Set(w, nil, Claims(w.rules))
	}
	return all, holders, leftOut
}

// Whole combines all objects of a node: the desired state of an agent that has seen nothing before.
// It fails for NodeProxyRules that no agent of this release would apply.
func Whole(node *v1alpha1.NodeProxyRules, services []v1alpha1.ServiceProxyRules, family dataplane.Family) (*Set, error) {
	if why := unknownFormat(node.Spec.FormatVersion); why != "" {
		return nil, fmt.Errorf("NodeProxyRules %s: %s", node.Name, why)
	}
	settings := v1alpha1.CompleteSettings(&node.Spec.Settings)
	if errs := v1alpha1.ValidateSettings(settings); len(errs) > 0 {
		return nil, fmt.Errorf("NodeProxyRules %s: no agent applies such settings: %w", node.Name, errs.ToAggregate())
	}
	all, holders, leftOut := readAll(services)
	set := &Set{
		Family: family, NodeName: node.Name, Mode: settings.Mode.Kernel(), Node: Facts(&node.Spec.Node, settings, family),
		Services: map[dataplane.ServiceName]*dataplane.Service{}, Problems: map[dataplane.ServiceName][]string{}, LeftOut: leftOut,
		Holders: holders,
	}
	localEndpoints, _ := LocalEndpoints(node.Spec.LocalEndpoints)
	for _, w := range all {
		in := Input{
			Name: w.name, Rules: w.rules, Family: family, Precedence: w.precedence,
			Node: Node{Name: node.Name, Zone: node.Spec.Node.Zone},
			Lost: func(c Claim) bool { return holders.claims.Lost(w, c) },
		}
		if m := localEndpoints[w.name]; m != nil {
			in.LocalEndpoints = m.Ports
		}
		svc, problems := Service(in)
		if svc != nil {
			set.Services[w.name] = svc
		}
		if len(problems) > 0 {
			slices.Sort(problems)
			set.Problems[w.name] = slices.Compact(problems)
		}
	}
	return set, nil
}

// whole is a Service whose object is known completely.
type whole struct {
	name       dataplane.ServiceName
	rules      *v1alpha1.ServiceProxyRulesSpec
	precedence dataplane.Precedence
}

// Precedes implements Claimant.
func (w *whole) Precedes(o *whole) bool {
	return cmp.Or(w.precedence.Compare(o.precedence), w.name.Compare(o.name)) < 0
}

// known returns the Service of an object, or why nothing of it is used.
func known(object *v1alpha1.ServiceProxyRules) (w *whole, why string) {
	name, ok := ServiceOf(object.Name)
	why = unknownFormat(object.Spec.FormatVersion)
	switch {
	case !ok:
		return nil, "it is not named <namespace>.<service>; the controller renders none like it"
	case why != "":
		return nil, why
	case object.Spec.Released:
		return nil, "it is released: the Service has ended, or is not proxied any more"
	}
	if _, excess := v1alpha1.SizeOf(&object.Spec).Excess(); excess != "" { // before anything is expanded
		return nil, excess
	}
	return &whole{
		name: name, rules: &object.Spec, precedence: dataplane.Precedence{Created: object.Spec.ServiceCreated.Time},
	}, ""
}

// unknownFormat returns why a format is unknown; empty: it is known.
func unknownFormat(version int32) string {
	known := v1alpha1.FormatVersions()
	if slices.Contains(known, version) {
		return ""
	}
	if version < known[0] {
		return fmt.Sprintf("spec.formatVersion %d is no format: the first is %d", version, known[0])
	}
	return fmt.Sprintf("spec.formatVersion %d is of a newer release (formats up to %d are known)", version, v1alpha1.FormatVersion)
}

// ServiceOf returns the Service of a ServiceProxyRules' name.
func ServiceOf(object string) (dataplane.ServiceName, bool) {
	namespace, name, found := strings.Cut(object, ".")
	ok := found && namespace != "" && name != "" && !strings.Contains(name, ".")
	return dataplane.ServiceName{Namespace: namespace, Name: name}, ok
}

// LocalEndpoints returns a node's local endpoints by Service. Of two entries for one, the last counts.
// It leaves out the namespaces that exceed a limit, the largest ones if that of the node is exceeded.
func LocalEndpoints(list []v1alpha1.ServiceLocalEndpoints) (localEndpoints map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints, over sets.Set[string]) {
	localEndpoints, over = make(map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints, len(list)), sets.Set[string]{}
	bytes, total := map[string]int{}, 0
	for i := range list {
		bytes[list[i].Namespace] += list[i].MaxBytes()
	}
	for _, namespace := range slices.SortedFunc(maps.Keys(bytes), func(a, b string) int { return cmp.Or(bytes[a]-bytes[b], cmp.Compare(a, b)) }) {
		if total += bytes[namespace]; bytes[namespace] > v1alpha1.MaxNamespaceLocalBytes || total > v1alpha1.MaxNodeLocalBytes {
			over.Insert(namespace)
		}
	}
	for i := range list {
		if !over.Has(list[i].Namespace) {
			localEndpoints[dataplane.ServiceName{Namespace: list[i].Namespace, Name: list[i].Name}] = &list[i]
		}
	}
	return localEndpoints, over
}

// Facts returns the facts of the node for one family's data plane, with complete settings. It leaves
// out what it cannot parse.
func Facts(facts *v1alpha1.NodeFacts, settings *v1alpha1.ProxySettings, family dataplane.Family) dataplane.Node {
	node := dataplane.Node{Settings: settings}
	for _, text := range facts.Addresses {
		if a, err := netip.ParseAddr(text); err == nil && family.Of(a) {
			node.Addresses = append(node.Addresses, a)
		}
	}
	for _, text := range facts.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil && family.Of(p.Addr()) {
			node.PodCIDRs = append(node.PodCIDRs, p.Masked())
		}
	}
	return node
}
