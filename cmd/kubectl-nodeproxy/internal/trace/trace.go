// Package trace finds out what becomes of a packet on a node, named by addresses or by
// pods, nodes and Services. It is pure: objects in, a report out.
package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// Question is which packet is asked about, as people write it.
type Question struct {
	// Node may be empty where From is a pod or a node.
	Node     string
	From, To string
	// Namespace is that of pods and Services that are named without one.
	Namespace string
	// Plugin is the plugin's release.
	Plugin string
}

// Report is what becomes of the packet.
type Report struct {
	Node string `json:"node"`
	From string `json:"from"`
	To   string `json:"to"`
	*tracer.Result
	Outcomes []Outcome `json:"outcomes"`
	// Notes say what else there is to know, first in what the node may differ from
	// what is wanted of it, by which this is computed.
	Notes []string `json:"notes,omitempty"`
}

// Outcome is one of the things that may become of the packet.
type Outcome struct {
	tracer.Outcome
	// Path are the chains, or the virtual server, that lead to it.
	Path []string `json:"path"`
	// Pod is the endpoint's, as NAMESPACE/NAME, where that is known.
	Pod string `json:"pod,omitempty"`
}

// Of answers a question.
func Of(ctx context.Context, o *cluster.Objects, q Question) (*Report, error) {
	w := &world{Objects: o, namespace: q.Namespace, plugin: q.Plugin}
	if len(o.NodeRules) == 0 { // a name could be that of a node, and no packet enters any
		if q.Node == "" {
			return nil, cluster.ErrNoNodes
		}
		return nil, w.unknownNode(q.Node)
	}
	to, err := w.destination(q.To)
	if unrendered, is := errors.AsType[*UnrenderedError](err); is {
		unrendered.Node = w.rulesOf(w.enters(q))
	}
	if err != nil {
		return nil, err
	}
	from, err := w.source(q.From)
	if err != nil {
		return nil, err
	}
	node, err := w.node(q.Node, from)
	if err != nil {
		return nil, err
	}
	packet, err := from.packet(to, node.Name)
	if err != nil {
		return nil, err
	}
	if err := o.Newer("NodeProxyRules "+node.Name, node.Spec.FormatVersion, q.Plugin); err != nil {
		return nil, err
	}
	family := dataplane.IPv4
	if !packet.Destination.Addr().Is4() {
		family = dataplane.IPv6
	}
	set, err := combine.Whole(node, o.ServiceRules, family)
	if err != nil {
		return nil, fmt.Errorf("what the node is to hold cannot be told: %w", err)
	}
	if err := w.used(to, set); err != nil {
		return nil, err
	}
	notes, err := notesOf(node, set, o)
	if err != nil {
		return nil, err
	}
	if mode := node.Status.Mode; mode != "" {
		set.Mode = mode
	}
	result, err := tracer.New(set).Trace(ctx, packet)
	if err != nil {
		return nil, err
	}
	r := &Report{Node: node.Name, From: q.From, To: q.To, Result: result, Notes: append(notes, result.Notes...)}
	for _, one := range result.Outcomes {
		r.Outcomes = append(r.Outcomes, Outcome{Outcome: one, Path: one.Via(), Pod: w.podOf(result.Service, one.Endpoint)})
	}
	r.Notes = append(r.Notes, fromService(set, packet.Source)...)
	r.Notes = append(r.Notes, w.elsewhere(r, from)...)
	r.Notes = append(r.Notes, w.unused(set, node, result)...)
	r.Notes = append(r.Notes, refused(node, result.Service)...)
	for _, u := range o.Unread {
		if u.Kind == cluster.EndpointSlices {
			r.Notes = append(r.Notes, "the pods of endpoints are not named: "+u.Why)
		}
	}
	return r, nil
}

// world is the objects of a cluster.
type world struct {
	*cluster.Objects
	namespace string
	plugin    string // its release
}

// enters is the name of the node that the packet enters; empty: that cannot be told.
func (w *world) enters(q Question) string {
	from, err := w.source(q.From)
	if err != nil {
		return q.Node
	}
	return cmp.Or(q.Node, from.node)
}

// node returns the rules of the node that the packet enters.
func (w *world) node(name string, from *source) (*v1alpha1.NodeProxyRules, error) {
	if name == "" {
		name = from.node
	}
	if name == "" {
		return nil, fmt.Errorf("--node is missing: say on which node the packet from %s arrives", from.text)
	}
	if n := w.rulesOf(name); n != nil {
		return n, nil
	}
	return nil, w.unknownNode(name)
}

func (w *world) unknownNode(name string) error {
	known := make([]string, len(w.NodeRules))
	for i := range w.NodeRules {
		known[i] = w.NodeRules[i].Name
	}
	return cluster.NoSuchNode(name, known)
}

// rulesOf returns a node's rules, or nil.
func (w *world) rulesOf(node string) *v1alpha1.NodeProxyRules {
	if i := slices.IndexFunc(w.NodeRules, func(n v1alpha1.NodeProxyRules) bool { return n.Name == node }); i >= 0 {
		return &w.NodeRules[i]
	}
	return nil
}

// fromService says that a source is the cluster IP of a Service, which sends nothing.
func fromService(set *combine.Set, source netip.Addr) []string {
	for name, svc := range set.Services {
		if svc.ClusterIP == source {
			return []string{fmt.Sprintf("%s is the cluster IP of %s, and no packet has that source: give the address of a pod of it instead", source, name)}
		}
	}
	return nil
}

// elsewhere says which other node has to do with the packet, before or after.
func (w *world) elsewhere(r *Report, from *source) []string {
	var out []string
	if from.node != "" && from.node != r.Node {
		out = append(out, fmt.Sprintf("%s is on %s, whose rules come first: this is of a packet that they let pass as it is", from.text, from.node))
	}
	has := func(n v1alpha1.NodeProxyRules) bool {
		return slices.Contains(addresses(n.Spec.Node.Addresses), r.Destination.Addr())
	}
	if i := slices.IndexFunc(w.NodeRules, has); r.Service == nil && i >= 0 && !has(*w.rulesOf(r.Node)) {
		name := w.NodeRules[i].Name
		out = append(out, fmt.Sprintf("%s is an address of %s: --node %s --from %s tells what becomes of it there", r.Destination.Addr(), name, name, r.Source))
	}
	return out
}

// refused says why a node's kernel does not take a Service, as far as the node
// names it.
func refused(node *v1alpha1.NodeProxyRules, service *tracer.Target) []string {
	if service == nil || node.Status.Refused == nil {
		return nil
	}
	for _, example := range node.Status.Refused.Examples {
		if name, why, _ := strings.Cut(example, ": "); name == service.Namespace+"/"+service.Name {
			return []string{fmt.Sprintf("the kernel of the node refuses the Service %s: %s", name, why)}
		}
	}
	return nil
}

// podOf names the pod of an endpoint of a Service; empty: it is not known.
func (w *world) podOf(service *tracer.Target, endpoint *netip.AddrPort) string {
	if service == nil || endpoint == nil {
		return ""
	}
	address := endpoint.Addr().String()
	for i := range w.EndpointSlices {
		slice := &w.EndpointSlices[i]
		if slice.Namespace != service.Namespace || slice.Labels[discoveryv1.LabelServiceName] != service.Name {
			continue
		}
		for j := range slice.Endpoints {
			e := &slice.Endpoints[j]
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" && slices.Contains(e.Addresses, address) {
				return e.TargetRef.Namespace + "/" + e.TargetRef.Name
			}
		}
	}
	return ""
}

// addresses reads those that can be used, in order.
func addresses(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}
