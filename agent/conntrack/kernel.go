package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Kernel is the table of the calling thread's network namespace. The netlink library can neither
// filter a dump in the kernel nor visit its flows one by one, nor read status and ID of a flow.
type Kernel struct {
	// unfiltered: the kernel does not filter dumps.
	unfiltered atomic.Bool
	// delivered counts the entries that the kernel has delivered.
	delivered atomic.Int64
}

// NewKernel returns the table of the running kernel.
func NewKernel() *Kernel { return &Kernel{} }

var _ Table = (*Kernel)(nil)

// Walk implements Table. The kernel delivers only what the filters match; before Linux 5.8 it
// delivers everything, which is filtered here.
func (k *Kernel) Walk(ctx context.Context, family dataplane.Family, protocol v1alpha1.Protocol, filters []Filter, visit func(Flow)) error {
	for _, filter := range filters {
		if k.unfiltered.Load() {
			break
		}
		asked := filter
		if filter.Address.Is6() { // Linux 6.18 delivers all flows but those with the address
			asked.Address = netip.Addr{}
		}
		err := k.dump(ctx, family, protocol, &asked, func(f Flow) {
			switch {
			case filter.matches(f):
				visit(f)
			case !asked.matches(f): // the kernel does not know filters
				k.unfiltered.Store(true)
			}
		})
		switch {
		case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL):
			k.unfiltered.Store(true)
		case err != nil:
			return fmt.Errorf("reading the %s flows of %s from the connection tracking table: %w", protocol, family, err)
		}
	}
	if !k.unfiltered.Load() {
		return nil
	}
	err := k.dump(ctx, family, protocol, nil, func(f Flow) {
		if slices.ContainsFunc(filters, func(filter Filter) bool { return filter.matches(f) }) {
			visit(f)
		}
	})
	if err != nil {
		k.unfiltered.Store(false) // the filter may not have been the cause
		return fmt.Errorf("reading the connection tracking table of %s: %w", family, err)
	}
	return nil
}

// dump calls visit with each flow of the protocol as it arrives.
func (k *Kernel) dump(ctx context.Context, family dataplane.Family, protocol v1alpha1.Protocol, filter *Filter, visit func(Flow)) error {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer socket.Close()
	if err := errors.Join(socket.SetSendTimeout(&nl.SocketTimeoutTv), socket.SetReceiveTimeout(&nl.SocketTimeoutTv)); err != nil {
		return fmt.Errorf("setting timeouts of a netlink socket: %w", err)
	}
	stop := context.AfterFunc(ctx, socket.Close) // do not wait for the rest of a canceled dump
	defer stop()
	request := nl.NewNetlinkRequest(requestGet, unix.NLM_F_DUMP)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}
	request.AddRawData(dumpMessage(family, protocol, filter))
	err = request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		k.delivered.Add(1)
		if f, ok := parseFlow(message); ok && f.Protocol == protocol {
			visit(f)
		}
		return ctx.Err() == nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Delete implements Table.
func (k *Kernel) Delete(f Flow) (bool, error) {
	request := nl.NewNetlinkRequest(requestDelete, unix.NLM_F_ACK)
	request.AddRawData(deleteMessage(f))
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("deleting the flow %s from the connection tracking table: %w", f, err)
	}
	return true, nil
}

// Original returns where the sender of a UDP flow has sent it, before rules have translated that to where
// it arrives.
func (k *Kernel) Original(sender, arrives netip.AddrPort) (netip.AddrPort, error) {
	f, err := k.find(sender, arrives)
	return f.Destination, err
}

// Forget deletes a UDP flow by its sender and where it arrives, so that its next datagram is a new one.
func (k *Kernel) Forget(sender, arrives netip.AddrPort) error {
	f, err := k.find(sender, arrives)
	if err == nil {
		_, err = k.Delete(f)
	}
	return err
}

func (k *Kernel) find(sender, arrives netip.AddrPort) (Flow, error) {
	request := nl.NewNetlinkRequest(requestGet, unix.NLM_F_ACK) // without it, nothing ends the answer
	request.AddRawData(getMessage(v1alpha1.ProtocolUDP, sender, arrives))
	messages, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return Flow{}, fmt.Errorf("reading the flow from %s to %s from the connection tracking table: %w", sender, arrives, err)
	}
	for _, message := range messages {
		if f, ok := parseFlow(message); ok && f.ReplySource == arrives && f.ReplyDestination == sender {
			return f, nil
		}
	}
	return Flow{}, fmt.Errorf("the connection tracking table has no flow from %s to %s", sender, arrives)
}

// LocalAddresses implements Table.
func (k *Kernel) LocalAddresses(family dataplane.Family) ([]netip.Addr, error) {
	addresses, err := dataplane.InterfaceAddresses()
	return slices.DeleteFunc(addresses, func(a netip.Addr) bool { return !family.Of(a) }), err
}

// readCounters adds up the counters of all CPUs, of the calling thread's network namespace. It
// costs less than reading /proc/net/stat, which is that of the process's first thread and not
// in every kernel.
func readCounters() (Counters, error) {
	request := nl.NewNetlinkRequest(requestCPUStats, unix.NLM_F_DUMP)
	request.AddRawData(header(unix.AF_UNSPEC))
	messages, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return Counters{}, fmt.Errorf("netlink request, which needs nf_conntrack_netlink and CAP_NET_ADMIN: %w", err)
	}
	var sum Counters
	for _, message := range messages {
		sum.add(message)
	}
	return sum, nil
}
