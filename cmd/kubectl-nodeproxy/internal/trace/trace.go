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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Question is the packet, as the user describes it.
type Question struct {
	// Node may be empty if From is a pod or a node.
	Node     string
	From, To string
	// Namespace is that of pods and Services without one.
	Namespace string
}

// Report is the predicted path of a packet.
type Report struct {
	metav1.TypeMeta `json:",inline"`
	Node            string `json:"node"`
	From            string `json:"from"`
	To              string `json:"to"`
	tracer.Result   `json:",inline"`
	// Outcomes are those of the result, with pods and paths.
	Outcomes []Outcome `json:"outcomes"`
}

// Outcome is a possible outcome for the packet.
type Outcome struct {
	tracer.Outcome `json:",inline"`
	// Pod is the endpoint's pod (namespace/name), if known.
	Pod string `json:"pod,omitempty"`
	// Path is the chains and maps, or the virtual server, that lead to it.
	Path []string `json:"path"`
}

// Of predicts the path of a packet.
func Of(ctx context.Context, o *cluster.Objects, q Question) (*Report, error) {
	w := &world{Objects: o, namespace: q.Namespace}
	if len(o.NodeRules) == 0 { // names of nodes could not be resolved
		if q.Node == "" {
			return nil, cluster.ErrNoNodes
		}
		return nil, w.unknownNode(q.Node)
	}
	to, err := w.destination(q.To)
	if unrendered, is := errors.AsType[*UnrenderedError](err); is {
		node := q.Node
		if from, err := w.source(q.From); err == nil {
			node = cmp.Or(node, from.node)
		}
		unrendered.Node = w.rulesOf(node)
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
	if err := o.NewerNode(node); err != nil {
		return nil, err
	}
	set, err := combine.Whole(node, o.ServiceRules, dataplane.FamilyOf(packet.Destination.Addr()))
	if err != nil {
		return nil, fmt.Errorf("the desired rules of the node cannot be computed: %w", err)
	}
	if err := w.used(to, set); err != nil {
		return nil, err
	}
	notes, err := notes(node, set, o)
	if err != nil {
		return nil, err
	}
	if mode := node.Status.Mode; mode != "" {
		set.Mode = mode.Kernel()
	}
	result, err := tracer.New(set).Trace(ctx, packet)
	if err != nil {
		return nil, err
	}
	r := w.report(node.Name, q, result)
	r.Notes = slices.Concat(notes, result.Notes, fromService(set, packet.Source), w.elsewhere(r, from), w.unused(set, node, result), rejected(node, result.Service), byAgent(node, set, result))
	if why := o.Unreadable(cluster.EndpointSlices); why != "" {
		r.Notes = append(r.Notes, "the pods of endpoints are unknown: "+why)
	}
	return r, nil
}

// report converts the result of a trace.
func (w *world) report(node string, q Question, result *tracer.Result) *Report {
	r := &Report{TypeMeta: output.Type("Trace"), Node: node, From: q.From, To: q.To, Result: *result}
	for _, o := range result.Outcomes {
		r.Outcomes = append(r.Outcomes, Outcome{Outcome: o, Pod: w.podOf(result.Service, o.Endpoint), Path: o.Via()})
	}
	return r
}

// world is the objects of a cluster.
type world struct {
	*cluster.Objects
	namespace string
}

// node returns the rules of the node that the packet enters.
func (w *world) node(name string, from *source) (*v1alpha1.NodeProxyRules, error) {
	if name = cmp.Or(name, from.node); name == "" {
		return nil, fmt.Errorf("--node is missing: specify the node at which the packet from %s arrives", from.text)
	}
	if n := w.rulesOf(name); n != nil {
		return n, nil
	}
	return nil, w.unknownNode(name)
}

func (w *world) unknownNode(name string) error {
	var known []string
	for _, n := range w.NodeRules {
		known = append(known, n.Name)
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

// fromService reports that a source is the cluster IP of a Service, which sends no packets.
func fromService(set *combine.Set, source netip.Addr) []string {
	for name, svc := range set.Services {
		if svc.ClusterIP == source {
			return []string{fmt.Sprintf("%s is the cluster IP of %s, and no packet has that source: use the address of one of its pods instead", source, name)}
		}
	}
	return nil
}

// elsewhere reports which other node processes the packet, before or after.
func (w *world) elsewhere(r *Report, from *source) []string {
	var out []string
	if from.node != "" && from.node != r.Node {
		out = append(out, fmt.Sprintf("%s is on %s, whose rules apply first: this trace assumes that they pass the packet unchanged", from.text, from.node))
	}
	has := func(n v1alpha1.NodeProxyRules) bool {
		return slices.Contains(addresses(n.Spec.Node.Addresses), r.Destination.Addr())
	}
	if i := slices.IndexFunc(w.NodeRules, has); r.Service == nil && i >= 0 && !has(*w.rulesOf(r.Node)) {
		name := w.NodeRules[i].Name
		out = append(out, fmt.Sprintf("%s is an address of %s: --node %s --from %s traces the packet there", r.Destination.Addr(), name, name, r.Source))
	}
	return out
}

// rejected explains why a node's kernel rejects a Service, if the node names it.
func rejected(node *v1alpha1.NodeProxyRules, service *tracer.Target) []string {
	if service == nil || node.Status.Rejected == nil {
		return nil
	}
	for _, example := range node.Status.Rejected.Examples {
		if name, why, _ := strings.Cut(example, ": "); name == service.Namespace+"/"+service.Name {
			return []string{fmt.Sprintf("the kernel of the node rejects the Service %s: %s", name, why)}
		}
	}
	return nil
}

// byAgent reports that not the kernel chooses the endpoint, as it does for SCTP in any case.
func byAgent(node *v1alpha1.NodeProxyRules, set *combine.Set, result *tracer.Result) []string {
	delivered := slices.ContainsFunc(result.Outcomes, func(o tracer.Outcome) bool { return o.Fate == tracer.Delivered })
	if result.Service == nil || !delivered || result.Protocol == v1alpha1.ProtocolSCTP {
		return nil
	}
	svc := set.Services[dataplane.ServiceName{Namespace: result.Service.Namespace, Name: result.Service.Name}]
	if svc == nil || !svc.Userspace && ptr.Deref(node.Spec.Settings.Mode, "") != v1alpha1.ModeUserspace {
		return nil
	}
	return []string{"the kernel redirects the connection to the agent, which chooses among these endpoints and tries another one if that does not accept; the endpoint sees the node's address as its client"}
}

// podOf returns the pod of an endpoint of a Service; empty: unknown.
func (w *world) podOf(service *tracer.Target, endpoint *netip.AddrPort) string {
	if service == nil || endpoint == nil {
		return ""
	}
	address := endpoint.Addr().String()
	for _, slice := range w.EndpointSlices {
		if slice.Namespace != service.Namespace || slice.Labels[discoveryv1.LabelServiceName] != service.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" && slices.Contains(e.Addresses, address) {
				return e.TargetRef.Namespace + "/" + e.TargetRef.Name
			}
		}
	}
	return ""
}

// addresses parses the valid ones, in order.
func addresses(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}
