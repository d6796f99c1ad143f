package tracer

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Packet is the first one of a new client's connection.
type Packet struct {
	Protocol v1alpha1.Protocol
	// Source is invalid for a process on the node, whose source the kernel selects.
	Source netip.Addr
	// Pod: it is known to come from a pod on the node. Otherwise the source decides.
	Pod         bool
	Destination netip.AddrPort
}

// Origin is where a packet comes from, as the node sees it.
type Origin string

// Origins of packets.
const (
	Process Origin = "Process" // on the node itself, or a pod in its network
	Pod     Origin = "Pod"     // on the node
	Outside Origin = "Outside" // of the node
)

// Interfaces by which packets enter a node, if the settings name none.
const (
	podInterface = "pod0"
	uplink       = "uplink0"
)

// Tracer follows packets through one IP family of a node.
type Tracer struct {
	set       *combine.Set
	addresses []netip.Addr // of the node's interfaces
}

// New returns a Tracer. more are addresses of the node that the set lacks.
func New(set *combine.Set, more ...netip.Addr) *Tracer {
	t := &Tracer{set: set, addresses: slices.Clone(set.Node.Addresses)}
	for _, a := range more {
		if set.Family.Of(a) && !slices.Contains(t.addresses, a) {
			t.addresses = append(t.addresses, a)
		}
	}
	return t
}

// kernel is a programmed model.
type kernel struct {
	modes.Kernel
	result dataplane.Result
}

// Trace returns all that may happen to a packet.
func (t *Tracer) Trace(ctx context.Context, p Packet) (*Result, error) {
	if !t.set.Family.Of(p.Destination.Addr()) || p.Source.IsValid() && !t.set.Family.Of(p.Source) {
		return nil, fmt.Errorf("a packet from %s to %s is not one of %s", p.Source, p.Destination, t.set.Family)
	}
	services := t.relevant(&p)
	k, err := t.program(ctx, services)
	if err != nil {
		return nil, err
	}
	sent, origin := t.send(&p, k)
	outcomes, err := k.Trace(sent)
	if err != nil {
		return nil, fmt.Errorf("trace a packet from %s to %s: %w", sent.Source, sent.Destination, err)
	}
	q := &question{Tracer: t, services: services, packet: sent, protocol: p.Protocol, kernel: k}
	return q.answer(origin, outcomes), nil
}

// program makes the data plane of the set's mode program a model.
func (t *Tracer) program(ctx context.Context, services map[dataplane.ServiceName]*dataplane.Service) (*kernel, error) {
	model, err := modes.NewModel(t.set.Mode, t.set.Family, t.addresses...)
	if err != nil {
		return nil, err
	}
	k := &kernel{Kernel: model.Kernel}
	k.result, err = model.Apply(ctx, &dataplane.Ruleset{Mode: t.set.Mode, Node: t.set.Node, Services: services, Full: true, Prune: true})
	if err != nil {
		return nil, fmt.Errorf("program the rules of %s: %w", t.set.NodeName, err)
	}
	return k, nil
}

// relevant returns the Services that concern a packet by its addresses and ports, or by those that it
// gets by translation. All others have no rule that it could meet, however many they are.
func (t *Tracer) relevant(p *Packet) map[dataplane.ServiceName]*dataplane.Service {
	out := map[dataplane.ServiceName]*dataplane.Service{}
	sources := sets.New(p.Source)
	if !p.Source.IsValid() { // see chosen
		sources = sets.New(t.addresses[:min(1, len(t.addresses))]...).Insert(p.Destination.Addr())
	}
	addresses := sources.Clone().Insert(p.Destination.Addr())
	ports := sets.New(p.Destination.Port())
	// Services that the translated packet may meet do not translate it again.
	for range 2 {
		added := map[dataplane.ServiceName]*dataplane.Service{}
		for name, svc := range t.set.Services {
			if out[name] == nil && concerns(svc, sources, addresses, ports) {
				added[name] = svc
			}
		}
		maps.Copy(out, added)
		for _, svc := range added {
			for i := range svc.Ports {
				for _, e := range slices.Concat(svc.Ports[i].Cluster, svc.Ports[i].Local) {
					addresses.Insert(e.Addr())
					ports.Insert(e.Port())
				}
			}
		}
	}
	return out
}

// concerns reports whether a Service has one of the addresses, a node port among the ports, or one of
// the sources as an endpoint on the node.
func concerns(svc *dataplane.Service, sources, addresses sets.Set[netip.Addr], ports sets.Set[uint16]) bool {
	return addresses.Has(svc.ClusterIP) || addresses.HasAny(svc.ExternalIPs...) || addresses.HasAny(svc.LoadBalancerIPs...) ||
		svc.HealthCheckNodePort != 0 && ports.Has(svc.HealthCheckNodePort) ||
		slices.ContainsFunc(svc.Ports, func(p dataplane.Port) bool {
			return p.NodePort != 0 && ports.Has(p.NodePort) ||
				slices.ContainsFunc(p.LocalEndpoints, func(e netip.AddrPort) bool { return sources.Has(e.Addr()) })
		})
}

// send determines where a packet comes from.
func (t *Tracer) send(p *Packet, k modes.Kernel) (kernelmodel.Packet, Origin) {
	out := kernelmodel.Packet{Protocol: strings.ToLower(string(p.Protocol)), Source: p.Source, Destination: p.Destination}
	if !out.Source.IsValid() {
		out.Source = t.chosen(p.Destination.Addr(), k)
		return out, Process
	}
	pod, by := t.podInterface()
	switch {
	case k.Local(out.Source) && !p.Pod:
		return out, Process
	case p.Pod || t.isPod(out.Source):
		out.In, out.Bridged = pod, by == v1alpha1.DetectLocalBridgeInterface
		return out, Pod
	}
	out.In = uplink
	return out, Outside
}

// chosen is the source that the kernel selects for a process: for packets that stay on the node, the
// destination itself.
func (t *Tracer) chosen(destination netip.Addr, k modes.Kernel) netip.Addr {
	switch {
	case k.Local(destination):
		return destination
	case len(t.addresses) > 0:
		return t.addresses[0]
	case t.set.Family == dataplane.IPv6:
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// isPod reports whether a is known to be an address of a pod on the node.
func (t *Tracer) isPod(a netip.Addr) bool {
	local := sets.New(a)
	for _, svc := range t.set.Services {
		if concerns(svc, local, nil, nil) {
			return true
		}
	}
	return slices.ContainsFunc(t.set.Node.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// podInterface is an interface by which packets of pods enter the node.
func (t *Tracer) podInterface() (name string, by v1alpha1.DetectLocalMode) {
	d := t.set.Node.Settings.DetectLocal
	switch {
	case d.Mode == v1alpha1.DetectLocalBridgeInterface && d.Interface != nil:
		return *d.Interface, d.Mode
	case d.Mode == v1alpha1.DetectLocalInterfaceNamePrefix && d.InterfaceNamePrefix != nil:
		return *d.InterfaceNamePrefix + "0", d.Mode
	}
	return podInterface, d.Mode
}
