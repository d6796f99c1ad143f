// Package dataplane is the contract between the agent, which knows what a node
// should hold, and the packages that make its kernel hold it. It knows no
// kernel library.
//
// One implementation serves one IP family, so that one family's failure does
// not stop the other. A Ruleset and what it points to hold addresses of one
// family only.
package dataplane

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ErrUnsupported is wrapped by errors that say that this node's kernel or
// tools cannot do what is asked. Repeating the call helps only after somebody
// has changed the node or the settings.
var ErrUnsupported = errors.New("not supported on this node")

// Family is an IP family.
type Family string

// IP families, as they stand in NodeProxyRules.status.families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// Of reports whether a is an address of the family. An IPv4 address mapped
// into IPv6 is of neither.
func (f Family) Of(a netip.Addr) bool {
	if f == IPv4 {
		return a.Is4()
	}
	return a.Is6() && !a.Is4In6()
}

// ServiceName names a Service.
type ServiceName struct {
	Namespace string
	Name      string
}

// String returns namespace/name.
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n ServiceName) Compare(o ServiceName) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, o.Name)
}

// SeveralNamespaces reports whether Services are not all of one namespace. What
// is wrong with those of one may be the doing of whoever may write there.
func SeveralNamespaces(names iter.Seq[ServiceName]) bool {
	first, found := "", false
	for n := range names {
		if found && n.Namespace != first {
			return true
		}
		first, found = n.Namespace, true
	}
	return false
}

// Ruleset is what one IP family of the node should hold, and what of it has
// changed since the last Apply that returned no error. It belongs to the
// caller; implementations read it during a call and keep no reference to it,
// though they may keep the Services, which are never changed once they are in
// a Ruleset, only replaced.
type Ruleset struct {
	// Mode is the mode to run: that of Node.Settings, or another one where the
	// node falls back.
	Mode v1alpha1.ProxyMode
	// Node holds the node's settings and facts.
	Node Node
	// Services holds every Service that is desired, held ones too.
	Services map[ServiceName]*Service
	// Dirty names the Services that were added, replaced or taken out since.
	Dirty map[ServiceName]struct{}
	// Full asks to read the kernel and compare all of it: at the start, after
	// an error, when Node changed, and to repair.
	Full bool
	// Recheck says that facts of the node that the implementation follows by
	// itself may have changed since; see Observer.
	Recheck bool
	// Keep names Services whose state may be older than what the kernel has,
	// because it comes from the last good set on disk: what the kernel has of
	// them stays as it is, only what it lacks is added. Nearly always empty.
	Keep map[ServiceName]struct{}
	// Rest names Services that an earlier Apply has reported as refused and that
	// this one need not try, be it full: the kernel keeps what it has of them, and
	// they stay refused. Those that are not named are tried again. It names none of
	// Dirty.
	Rest map[ServiceName]struct{}
	// Prune allows a full pass to remove what is in the kernel but belongs to
	// no Service in Services. Without it only rules of Services in Services or
	// in Dirty are replaced or removed.
	Prune bool
}

// Node is what an implementation needs to know of the node.
type Node struct {
	// Settings are complete: no field is nil.
	Settings *v1alpha1.ProxySettings
	// Addresses are the Node's addresses of this family, the primary first.
	Addresses []netip.Addr
	// PodCIDRs are the Node's pod ranges of this family.
	PodCIDRs []netip.Prefix
}

// Service is a Service as one IP family of this node should serve it.
type Service struct {
	Name ServiceName
	// Precedence is zero for a Service that has nothing but cluster IPs.
	Precedence      Precedence
	ClusterIP       netip.Addr
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	// NodeAddresses are those of ExternalIPs and LoadBalancerIPs that are addresses of
	// Nodes, this one's or others', sorted. Nearly always empty.
	NodeAddresses []netip.Addr
	// SourceRanges restrict who may use LoadBalancerIPs. None: no restriction.
	SourceRanges []netip.Prefix
	// ExternalLocal: external traffic policy Local is in effect.
	ExternalLocal bool
	// InternalLocal: internal traffic policy Local is in effect.
	InternalLocal bool
	// AffinitySeconds is how long a silent client keeps its endpoint. 0: no
	// session affinity.
	AffinitySeconds int32
	// HealthCheckNodePort is 0 for none.
	HealthCheckNodePort uint16
	// LocalReady is the number of distinct IP addresses of the Service's ready
	// endpoints on this node, over all its ports. 0 without HealthCheckNodePort,
	// which is what it is for.
	LocalReady int
	// IPVSScheduler is empty for the node's.
	IPVSScheduler string
	Ports         []Port
}

// ExternallyAccessible reports whether the port answers on anything besides
// the cluster IP.
func (s *Service) ExternallyAccessible(p *Port) bool {
	return p.NodePort != 0 || len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0
}

// OfOther reports whether one of the Service's addresses is another Node's: see OfOthers.
func (s *Service) OfOther(a netip.Addr, own []netip.Addr) bool {
	return s.OfNode(a) && !slices.Contains(own, a)
}

// OfNode reports whether one of the Service's addresses is a Node's.
func (s *Service) OfNode(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(s.NodeAddresses, a, netip.Addr.Compare)
	return found
}

// OfOthers are those of the Service's addresses that are other Nodes', where own are this
// node's. In mode IPVS they are left to these Nodes.
func (s *Service) OfOthers(own []netip.Addr) map[netip.Addr]struct{} {
	if len(s.NodeAddresses) == 0 {
		return nil
	}
	out := make(map[netip.Addr]struct{}, len(s.NodeAddresses))
	for _, a := range s.NodeAddresses {
		out[a] = struct{}{}
	}
	for _, a := range own {
		delete(out, a)
	}
	return out
}

// Port is one port of a Service with the endpoints selected for this node.
// Lists are sorted by the string form of their entries.
type Port struct {
	Name     string
	Protocol v1alpha1.Protocol
	Port     uint16
	NodePort uint16
	// Cluster are the endpoints for traffic under policy Cluster: ready ones
	// after topology, else terminating ones. Empty for a port that only ever
	// serves under policy Local.
	Cluster []netip.AddrPort
	// Local are the endpoints for traffic under policy Local: this node's ready
	// ones, else its terminating ones. Empty where no policy Local is in effect.
	Local []netip.AddrPort
	// Available: some endpoint on some node is ready or terminating. It
	// distinguishes "no endpoint" (reject) from "no local endpoint" (drop).
	Available bool
	// Members are this node's endpoints in any state.
	Members []netip.AddrPort
	// Serving are all endpoints on any node that receive traffic: ready and
	// terminating ones, whatever policies and hints say: tracked flows to them are
	// kept. Empty for SCTP. For TCP they are those of the last change of the
	// other lists.
	Serving []netip.AddrPort
	// Lost are addresses of the Service on which this port is not served,
	// because another Service has the better claim to address, port and
	// protocol, sorted. A lost node port is 0 in NodePort instead. Nearly always empty.
	Lost []netip.Addr
}

// Serves reports whether the port is served on a, an address of its Service.
func (p *Port) Serves(a netip.Addr) bool {
	_, lost := slices.BinarySearchFunc(p.Lost, a, netip.Addr.Compare)
	return !lost
}

// MaxExamples bounds lists of examples.
const MaxExamples = 10

// Dataplane programs one IP family of the kernel with the rules of one mode, or of several:
// package modes joins the Retirers of all modes. Its methods are not called concurrently. A
// data plane that notices changes by itself is an Observer, too. A Declaration describes
// what is the same for all nodes.
type Dataplane interface {
	// Supported returns nil, or an error that wraps ErrUnsupported and says what the node
	// lacks to run the mode of r with its settings, and what to do. The caller asks before it
	// applies a full Ruleset.
	Supported(ctx context.Context, r *Ruleset) error
	// Apply makes the kernel's state the desired one. When it returns an error, each Service is
	// served as before or as desired, and the next call must be full. Services
	// that the kernel rejects are in the Result, not an error.
	Apply(ctx context.Context, r *Ruleset) (Result, error)
	// Verify compares the kernel to r and writes nothing. Where the node has
	// come to lack the family, the error wraps ErrUnsupported.
	Verify(ctx context.Context, r *Ruleset, o VerifyOptions) (Difference, error)
	// Cleanup removes everything that is ours from the kernel.
	Cleanup(ctx context.Context, o CleanupOptions) error
}

// Retirer is the Dataplane of one mode among several.
type Retirer interface {
	Dataplane
	// Retire removes from the kernel what serves only this mode, after another mode has been
	// applied in full. What both modes use stays; it is the other's by then. Where connections
	// still depend on something it may stay for a while: pending is why, human-readable, and the
	// call is to be repeated; empty: nothing is left. It costs little where there is
	// nothing to remove, and detects what there is without having written it.
	Retire(ctx context.Context, r *Ruleset) (pending string, err error)
}

// Observer is a Dataplane that notices changes as they happen. Its methods run until ctx is
// done, also beside the other methods.
type Observer interface {
	// Follow calls changed whenever facts of the node, such as the addresses of its
	// interfaces, no longer fit what the last Apply left in the kernel. An Apply of a Ruleset
	// with Recheck takes them up.
	Follow(ctx context.Context, changed func())
	// Watch calls changed whenever another program may have changed what the last Apply left
	// in the kernel. Our own calls do not count, and changes of what is not ours cost next to
	// nothing.
	Watch(ctx context.Context, changed func(Change))
}

// Change is a change by another program of what an Apply left in the kernel, or a hint at one.
type Change struct {
	// By is who did it, human-readable, as far as the kernel reports; empty: unknown.
	By string
	// Sure: something of ours is gone, though another program may have added it
	// before. Otherwise it takes a Verify to tell.
	Sure bool
}

// CleanupOptions limit a Cleanup.
type CleanupOptions struct {
	// Exclude are ranges of spec.settings.ipvs.excludeCIDRs: virtual servers there stay. Nil:
	// those of the last Ruleset.
	Exclude []netip.Prefix
}

// ExcludedRanges reads spec.settings.ipvs.excludeCIDRs. The error names the field.
func ExcludedRanges(cidrs []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for i, cidr := range cidrs {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("spec.settings.ipvs.excludeCIDRs[%d]: %w", i, err)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
