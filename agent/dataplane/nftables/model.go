package nftables

import "net/netip"

// Model stands in for the kernel's nf_tables, to compute the fate of packets. Package nftablesmodel
// has one.
type Model interface {
	kernel
	// Addresses are those of the node's interfaces.
	Addresses() []netip.Addr
}
