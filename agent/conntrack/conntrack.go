package conntrack

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Flow is a UDP flow, or a TCP connection without an answer, of the default zone.
type Flow struct {
	// Protocol is UDP or TCP.
	Protocol v1alpha1.Protocol
	// Source and Destination are those of the first packet, as the client sent it.
	Source, Destination netip.AddrPort
	// ReplySource and ReplyDestination are those of an answer: ReplySource is the endpoint.
	ReplySource, ReplyDestination netip.AddrPort
	// OutsideNAT: something other than table nat translates the flow, such as IPVS.
	OutsideNAT bool
	// ID distinguishes flows between the same addresses.
	ID uint32
}

// String returns the flow in human-readable form.
func (f Flow) String() string {
	return fmt.Sprintf("%s %s to %s, sent to %s", f.Protocol, f.Source, f.Destination, f.ReplySource)
}

func (f Flow) translated() bool { return f.ReplySource != f.Destination }

// Filter selects flows by the destination to which the client sends.
type Filter struct {
	// Address is invalid for any.
	Address netip.Addr
	// Port is 0 for any.
	Port uint16
}

func (f Filter) matches(flow Flow) bool {
	return (!f.Address.IsValid() || f.Address == flow.Destination.Addr()) &&
		(f.Port == 0 || f.Port == flow.Destination.Port())
}

// Table is the kernel's connection tracking table. Its methods may be called concurrently,
// Delete also from within Walk.
type Table interface {
	// Walk calls visit for the flows of the family and protocol that match at least one of the
	// filters, for some perhaps more than once. It stores none of them. If it returns an error,
	// it may have omitted some.
	Walk(ctx context.Context, family dataplane.Family, protocol v1alpha1.Protocol, filters []Filter, visit func(Flow)) error
	// Delete removes a flow. It returns false if the flow does not exist.
	Delete(f Flow) (bool, error)
	// LocalAddresses are the addresses of the node's interfaces.
	LocalAddresses(family dataplane.Family) ([]netip.Addr, error)
}

// Reason is why a flow is stale, as a label of metrics.
type Reason string

// Reasons.
const (
	// EndpointGone: the flow's endpoint is gone, or, of TCP, no longer in the rules.
	EndpointGone Reason = "endpoint_gone"
	// NoEndpoint: likewise, and there is no other endpoint.
	NoEndpoint Reason = "no_endpoint"
	// NotTranslated: the flow is older than the rules for its destination.
	NotTranslated Reason = "not_translated"
	// OtherMode: IPVS translated the flow, but rules serve the address now.
	OtherMode Reason = "other_mode"
	// AddressGone: the Service has ended, or no longer has the address or port.
	AddressGone Reason = "address_gone"
)

// Reasons returns all of them.
func Reasons() []Reason {
	return []Reason{EndpointGone, NoEndpoint, NotTranslated, OtherMode, AddressGone}
}
