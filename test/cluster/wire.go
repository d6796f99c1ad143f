package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The addresses inside a cluster. They are the same in each cluster, because
// no two clusters can see each other.
const (
	serviceCIDR     = "10.96.0.0/16"
	serviceCIDR6    = "fd00:10:96::/112"
	apiServiceIP    = "10.96.0.1"
	wireAddress     = "172.20.0.1/24"
	wireAddress6    = "fd00:172:20::1/64"
	outsideAddress  = "172.20.0.200/24"
	outsideAddress6 = "fd00:172:20::200/64"
	wireBridge      = "br0"
	podBridge       = "cni0"
	apiPort         = 6443
)

// PodRanges are the ranges of all pods, as kube-proxy's --cluster-cidr takes
// them.
const PodRanges = "10.244.0.0/16,fd00:10:244::/48"

// nodeAddress is the address of the node with the given number on the wire.
func nodeAddress(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 20, 0, byte(10 + number)})
}

// nodeAddress6 is the same node's IPv6 address.
func nodeAddress6(number int) netip.Addr {
	return numbered6([16]byte{0xfd, 0x00, 0x01, 0x72, 0x00, 0x20}, 10+number)
}

// podRange is the range of the pods of the node with the given number.
func podRange(number int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(number), 0}), 24)
}

// podRange6 is the IPv6 range of the same pods.
func podRange6(number int) netip.Prefix {
	high, low := alike(number)
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x00, 0x00, 0x10, 0x02, 0x44, high, low}), 64)
}

// numbered6 is the address in a network whose last group reads as the number
// does in decimal, so that people find 172.20.0.11 again in fd00:172:20::11.
func numbered6(network [16]byte, number int) netip.Addr {
	network[14], network[15] = alike(number)
	return netip.AddrFrom16(network)
}

// alike returns the two bytes whose hexadecimal text is the number's decimal
// text; the number has at most four digits.
func alike(number int) (high, low byte) {
	v, _ := strconv.ParseUint(strconv.Itoa(number), 16, 16) // digits are hexadecimal digits, too
	return byte(v >> 8), byte(v & 0xff)
}

// rootAddresses are the two ends of the link between the root namespace and
// the control plane.
func rootAddresses(number int) (root, control netip.Prefix) {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(number), 1}), 30),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(number), 2}), 30)
}

// buildWire makes the control plane's namespace with the bridge in it, the
// link to the root namespace, and the client outside.
func (c *Cluster) buildWire() error {
	var err error
	if c.control, err = c.newPlace("control-plane", "control-plane"); err != nil {
		return err
	}
	err = c.control.links(func(h *netlink.Handle) error {
		return addBridge(h, wireBridge, wireAddress, wireAddress6)
	})
	if err != nil {
		return err
	}
	if err := c.linkToRoot(); err != nil {
		return err
	}
	if c.options.RealNodes {
		// It is the default route of all, and reports of packets that nothing took on
		// the way, such as a Service's address, that it cannot be reached. Programs
		// in pods that begin before anything proxies Services then try again soon.
		err := c.control.setSysctls(map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"})
		if err != nil {
			return err
		}
	}
	if c.outside, err = c.newPlace("outside", "outside"); err != nil {
		return err
	}
	return c.joinWire(c.outside, outsideAddress, outsideAddress6)
}

// linkToRoot makes the API server reachable from the root namespace.
func (c *Cluster) linkToRoot() error {
	root, control := rootAddresses(c.slot.number)
	here := &netlink.Handle{} // the namespace of the caller
	err := c.make(func() error { return addVeth(here, c.slot.rootLink(), c.control, "root") })
	if err != nil {
		return err
	}
	err = c.control.links(func(h *netlink.Handle) error {
		return errors.Join(addAddress(h, "root", control.String()), setUp(h, "root"))
	})
	if err != nil {
		return err
	}
	return errors.Join(addAddress(here, c.slot.rootLink(), root.String()), setUp(here, c.slot.rootLink()))
}

// addVeth makes a pair of links, one here and one in a place.
func addVeth(h *netlink.Handle, name string, there *Place, peer string) error {
	return there.space.use(func(ns netns.NsHandle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(int(ns))}
		if err := h.LinkAdd(veth); err != nil {
			return fmt.Errorf("creating link %s: %w", name, err)
		}
		return nil
	})
}

// joinWire joins a place to the bridge and gives it a default route there:
// without one, a connection to a Service's address ends before any rule.
func (c *Cluster) joinWire(p *Place, addresses ...string) error {
	port := "p-" + p.name
	if len(port) > 15 {
		port = port[:15]
	}
	if err := c.connect(c.control, port, wireBridge, p, "eth0"); err != nil {
		return err
	}
	return p.links(func(h *netlink.Handle) error {
		for _, address := range addresses {
			if err := addAddress(h, "eth0", address); err != nil {
				return err
			}
		}
		if err := setUp(h, "eth0"); err != nil {
			return err
		}
		for _, gateway := range []string{wireAddress, wireAddress6} {
			ip, _, err := net.ParseCIDR(gateway)
			if err != nil {
				return err
			}
			if err := addRoute(h, &netlink.Route{Gw: ip}); err != nil {
				return err
			}
		}
		return nil
	})
}

// addBridge makes a bridge with two addresses, IPv4 first, and brings it up. Its
// link address is its own: else it would change with the ports, and neighbors
// would send to the old one for some time.
func addBridge(h *netlink.Handle, name, address, address6 string) error {
	ip, _, err := net.ParseCIDR(address)
	if err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: linkAddress([4]byte(ip.To4()))}}
	if err := h.LinkAdd(bridge); err != nil {
		return fmt.Errorf("creating bridge %s: %w", name, err)
	}
	return errors.Join(addAddress(h, name, address), addAddress(h, name, address6), setUp(h, name))
}

// linkAddress is the link address that goes with an IPv4 address.
func linkAddress(ip [4]byte) net.HardwareAddr {
	return net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], ip[3]}
}

// connect makes a pair of links, one a port of a bridge, the other in a place.
func (c *Cluster) connect(at *Place, port, bridge string, p *Place, name string) error {
	return at.links(func(h *netlink.Handle) error {
		if err := addVeth(h, port, p, name); err != nil {
			return err
		}
		link, err := h.LinkByName(port)
		if err != nil {
			return fmt.Errorf("finding link %s: %w", port, err)
		}
		master, err := h.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("finding bridge %s: %w", bridge, err)
		}
		if err := h.LinkSetMaster(link, master); err != nil {
			return fmt.Errorf("joining %s to %s: %w", port, bridge, err)
		}
		// A pod that reaches itself through a Service comes back by its own
		// port.
		if err := h.LinkSetHairpin(link, true); err != nil {
			return fmt.Errorf("switching hairpin on at %s: %w", port, err)
		}
		return setUp(h, port)
	})
}

// setUp brings a link up.
func setUp(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding link %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing up %s: %w", name, err)
	}
	return nil
}

// addAddress gives a link an address. It is of use at once: the search for
// others with the same IPv6 address, which takes a second, is left out.
func addAddress(h *netlink.Handle, name, address string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding link %s: %w", name, err)
	}
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if parsed.IP.To4() == nil {
		parsed.Flags = unix.IFA_F_NODAD
	}
	if err := h.AddrAdd(link, parsed); err != nil {
		return fmt.Errorf("adding %s to %s: %w", address, name, err)
	}
	return nil
}

// addRoute adds a route or changes the one to the same destination.
func addRoute(h *netlink.Handle, route *netlink.Route) error {
	if err := h.RouteReplace(route); err != nil {
		return fmt.Errorf("adding route %s: %w", route, err)
	}
	return nil
}

// toNet converts a prefix for netlink.
func toNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// setSysctls writes kernel settings of the place's namespace.
func (p *Place) setSysctls(settings map[string]string) error {
	return p.Do(func() error {
		for name, value := range settings {
			if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
				return fmt.Errorf("setting %s in %s: %w", name, p.netns, err)
			}
		}
		return nil
	})
}

// RouteFromOutside makes the client outside send what is for ip (a load
// balancer's or an external address) to the given node, as a router in front
// of a cluster would. It may be called again to choose another node.
func (c *Cluster) RouteFromOutside(ip string, via *Node) error {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return fmt.Errorf("routing to a node: %w", err)
	}
	gateway := via.address
	if addr.Is6() {
		gateway = via.address6
	}
	return c.outside.RouteTo(netip.PrefixFrom(addr, addr.BitLen()), gateway)
}

// RouteTo makes the place send what is for the addresses of a prefix to a
// gateway. It may be called again to choose another one.
func (p *Place) RouteTo(prefix netip.Prefix, gateway netip.Addr) error {
	return p.links(func(h *netlink.Handle) error {
		return addRoute(h, &netlink.Route{Dst: toNet(prefix), Gw: gateway.AsSlice()})
	})
}
