package dataplane

import (
	"fmt"
	"net"
	"net/netip"
)

// InterfaceAddresses reads the addresses of the node's interfaces, of both
// families, in the network namespace of the calling thread.
func InterfaceAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the node's interfaces: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}
