package worlds

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MakeNode makes a bridge with the node's addresses in the network namespace of the
// calling thread.
func MakeNode() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: nodeBridge}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return err
	}
	if err := eachAddress(nodeAddresses(), netlink.AddrReplace); err != nil {
		return err
	}
	return netlink.LinkSetUp(bridge)
}

// UnmakeNode takes away what MakeNode made.
func UnmakeNode() error {
	bridge, err := netlink.LinkByName(nodeBridge)
	if err != nil {
		return err
	}
	return netlink.LinkDel(bridge)
}

// eachAddress adds addresses to the bridge, or removes them, in the network
// namespace of the calling thread.
func eachAddress(texts []string, do func(netlink.Link, *netlink.Addr) error) error {
	bridge, err := netlink.LinkByName(nodeBridge)
	if err != nil {
		return err
	}
	for _, text := range texts {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if address.IP.To4() == nil {
			address.Flags = unix.IFA_F_NODAD // no other node has it
		}
		if err := do(bridge, address); err != nil {
			return fmt.Errorf("address %s: %w", text, err)
		}
	}
	return nil
}

// SetGuests gives the node in the network namespace of the calling thread the
// further addresses, or takes them away.
func SetGuests(there bool) error {
	do := netlink.AddrDel
	if there {
		do = netlink.AddrReplace
	}
	return eachAddress(guestAddresses(), do)
}
