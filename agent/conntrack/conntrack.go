// Package conntrack keeps the kernel's connection tracking as the settings ask,
// tells its figures, and removes stale flows.
//
// The kernel translates a flow as its first datagram was translated, for as long
// as datagrams come: a client that keeps its socket goes on talking to an
// endpoint that is gone, or to a Service's address itself if there was no
// endpoint when it began. So whenever the rules have changed, the flows that
// contradict them are deleted, and their next datagram meets the rules as they
// are. SCTP and TCP end their connections themselves, but for one thing: the
// kernel keeps what it did with the first packet of a TCP connection for two
// minutes though nobody answers. A client that tried too early, before its Service
// was programmed, goes on sending to nobody, and so does its next connection from
// that port. So TCP connections that nobody has answered are deleted, too, and no
// others. Only flows of the default zone are: other zones belong to others.
package conntrack

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Flow is a UDP flow, or a TCP connection that nobody has answered so far, of the
// default zone, as the kernel tracks it.
type Flow struct {
	// Protocol is UDP or TCP.
	Protocol v1alpha1.Protocol
	// Source and Destination are the first datagram's, as the client sent it.
	Source, Destination netip.AddrPort
	// ReplySource and ReplyDestination are those that an answer has when it
	// comes: ReplySource is the endpoint.
	ReplySource, ReplyDestination netip.AddrPort
	// OutsideNAT: not the rules of table nat translate the flow, but something else, such as IPVS.
	OutsideNAT bool
	// ID tells the flow from another one between the same addresses.
	ID uint32
}

// String returns the flow in human-readable form.
func (f Flow) String() string {
	return fmt.Sprintf("%s %s to %s, sent to %s", f.Protocol, f.Source, f.Destination, f.ReplySource)
}

// translated reports whether the flow goes elsewhere than the client thinks.
func (f Flow) translated() bool { return f.ReplySource != f.Destination }

// Filter chooses flows by what the client sent to.
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

// Table is the kernel's connection tracking table. Its methods may be called
// concurrently, Delete also from within Walk.
type Table interface {
	// Walk calls visit with the flows of the family and protocol that match at
	// least one of the filters, some perhaps more than once. It holds none of them.
	// After an error some may not have been visited.
	Walk(ctx context.Context, family dataplane.Family, protocol v1alpha1.Protocol, filters []Filter, visit func(Flow)) error
	// Delete removes a flow. It returns false if it is gone already.
	Delete(f Flow) (bool, error)
	// LocalAddresses are the addresses of the node's interfaces.
	LocalAddresses(family dataplane.Family) ([]netip.Addr, error)
}

// Reason says why a flow is stale.
type Reason string

// Reasons, as they stand in metrics.
const (
	// EndpointGone: the flow goes to what is no endpoint any more.
	EndpointGone Reason = "endpoint_gone"
	// NoEndpoint: likewise, and there is no other endpoint either.
	NoEndpoint Reason = "no_endpoint"
	// NotTranslated: the flow began when the address was not served.
	NotTranslated Reason = "not_translated"
	// OtherMode: IPVS translated the flow, but it is rules that serve the address
	// now, and its virtual server has gone.
	OtherMode Reason = "other_mode"
	// AddressGone: the Service has ended, or lost the address or port.
	AddressGone Reason = "address_gone"
)

// Reasons returns all of them.
func Reasons() []Reason {
	return []Reason{EndpointGone, NoEndpoint, NotTranslated, OtherMode, AddressGone}
}
