package dataplane

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ServiceName names a Service.
type ServiceName struct {
	Namespace string
	Name      string
}

// String returns namespace/name.
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n ServiceName) Compare(o ServiceName) int {
	return cmp.Or(strings.Compare(n.Namespace, o.Namespace), strings.Compare(n.Name, o.Name))
}

// SeveralNamespaces reports whether Services are of several namespaces. A fault in those of one
// namespace may be caused by a user with permissions there.
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

// Service is a Service as one IP family of this node serves it.
type Service struct {
	Name ServiceName
	// Precedence is zero for a Service that has only cluster IPs.
	Precedence      Precedence
	ClusterIP       netip.Addr
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	// NodeAddresses are those of ExternalIPs and LoadBalancerIPs that are addresses of Nodes,
	// this one's or others', sorted. Nearly always empty.
	NodeAddresses []netip.Addr
	// SourceRanges restrict the clients of LoadBalancerIPs. None: no restriction.
	SourceRanges []netip.Prefix
	// ExternalLocal: the effective external traffic policy is Local.
	ExternalLocal bool
	// InternalLocal: the effective internal traffic policy is Local.
	InternalLocal bool
	// AffinitySeconds is how long a silent client stays with its endpoint. 0: no session affinity.
	AffinitySeconds int32
	// HealthCheckNodePort is 0 for none.
	HealthCheckNodePort uint16
	// LocalReady is the number of distinct IP addresses of ready endpoints on this node, over
	// all ports. It is 0 without HealthCheckNodePort, for which it is needed.
	LocalReady int
	// IPVSScheduler is empty for the node's.
	IPVSScheduler string
	// Userspace: the userspace proxy serves it, whatever the node's mode.
	Userspace bool
	Ports     []Port
}

// ExternallyAccessible reports whether the port answers on anything besides the cluster IP.
func (s *Service) ExternallyAccessible(p *Port) bool {
	return p.NodePort != 0 || len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0
}

// OfOther reports whether one of the Service's addresses belongs to another Node: see OfOthers.
func (s *Service) OfOther(a netip.Addr, own []netip.Addr) bool {
	return s.OfNode(a) && !slices.Contains(own, a)
}

// OfNode reports whether one of the Service's addresses belongs to a Node.
func (s *Service) OfNode(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(s.NodeAddresses, a, netip.Addr.Compare)
	return found
}

// OfOthers returns those of the Service's addresses that belong to other Nodes, given this
// node's own. Mode IPVS does not serve them.
func (s *Service) OfOthers(own []netip.Addr) sets.Set[netip.Addr] {
	if len(s.NodeAddresses) == 0 {
		return nil
	}
	return sets.New(s.NodeAddresses...).Delete(own...)
}

// Port is one port of a Service with the endpoints selected for this node. Lists are sorted by
// the string form of their entries.
type Port struct {
	Name     string
	Protocol v1alpha1.Protocol
	Port     uint16
	NodePort uint16
	// Cluster are the endpoints for traffic under policy Cluster: ready ones after topology
	// hints, else terminating ones. Empty for a port that only serves under policy Local.
	Cluster []netip.AddrPort
	// Local are the endpoints for traffic under policy Local: this node's ready ones, else its
	// terminating ones. Empty if no policy is Local.
	Local []netip.AddrPort
	// Available: an endpoint on any node is ready or terminating. It distinguishes "no
	// endpoint" (reject) from "no local endpoint" (drop).
	Available bool
	// LocalEndpoints are this node's endpoints in any state.
	LocalEndpoints []netip.AddrPort
	// Serving are all endpoints on any node that receive UDP, ready and terminating ones, regardless
	// of policies and hints: tracked flows to them are preserved. Empty for other protocols.
	Serving []netip.AddrPort
	// Lost are addresses of the Service on which this port is not served, because another
	// Service has the better claim to address, port and protocol, sorted. A lost node port is
	// 0 in NodePort instead. Nearly always empty.
	Lost []netip.Addr
}

// Serves reports whether the port is served on a, an address of its Service.
func (p *Port) Serves(a netip.Addr) bool {
	_, lost := slices.BinarySearchFunc(p.Lost, a, netip.Addr.Compare)
	return !lost
}

// Precedence decides which of several Services gets what all of them ask for, if none has it as
// its cluster IP or, at an address of a Node, as its node port.
type Precedence struct {
	// Retained: the Service's object has vanished, and its rules are retained.
	Retained bool
	// Created is when the Service was created; zero: unknown.
	Created time.Time
}

// Compare sorts the better claim first: a live Service's before a retained one's, then the older
// Service's. One of unknown age is the youngest.
func (p Precedence) Compare(o Precedence) int {
	if p.Retained != o.Retained {
		return last(p.Retained)
	}
	if p.Created.IsZero() != o.Created.IsZero() {
		return last(p.Created.IsZero())
	}
	return p.Created.Compare(o.Created)
}

// last compares one that comes last, or first.
func last(is bool) int {
	if is {
		return 1
	}
	return -1
}

// ComparePrecedence sorts the Service first that gets what both ask for: that of the better
// Precedence, then of the lower name.
func (s *Service) ComparePrecedence(o *Service) int {
	return cmp.Or(s.Precedence.Compare(o.Precedence), s.Name.Compare(o.Name))
}
