package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// The addresses inside a cluster. They are the same in each cluster, because
// no two clusters can see each other.
const (
	serviceCIDR    = "10.96.0.0/16"
	apiServiceIP   = "10.96.0.1"
	wireAddress    = "172.20.0.1/24"
	outsideAddress = "172.20.0.200/24"
	wireBridge     = "br0"
	podBridge      = "cni0"
	apiPort        = 6443
)

// nodeAddress is the address of the node with the given number on the wire.
func nodeAddress(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 20, 0, byte(10 + number)})
}

// podRange is the range of the pods of the node with the given number.
func podRange(number int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(number), 0}), 24)
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
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: wireBridge}}
		if err := h.LinkAdd(bridge); err != nil {
			return fmt.Errorf("creating bridge %s: %w", wireBridge, err)
		}
		return errors.Join(addAddress(h, wireBridge, wireAddress), setUp(h, wireBridge))
	})
	if err != nil {
		return err
	}
	if err := c.linkToRoot(); err != nil {
		return err
	}
	if c.outside, err = c.newPlace("outside", "outside"); err != nil {
		return err
	}
	return c.joinWire(c.outside, outsideAddress)
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
func (c *Cluster) joinWire(p *Place, address string) error {
	port := "p-" + p.name
	if len(port) > 15 {
		port = port[:15]
	}
	if err := c.connect(c.control, port, wireBridge, p, "eth0"); err != nil {
		return err
	}
	return p.links(func(h *netlink.Handle) error {
		if err := errors.Join(addAddress(h, "eth0", address), setUp(h, "eth0")); err != nil {
			return err
		}
		gateway, _, err := net.ParseCIDR(wireAddress)
		if err != nil {
			return err
		}
		return addRoute(h, &netlink.Route{Gw: gateway})
	})
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

// addAddress gives a link an address.
func addAddress(h *netlink.Handle, name, address string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding link %s: %w", name, err)
	}
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		return err
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
	return c.outside.links(func(h *netlink.Handle) error {
		return addRoute(h, &netlink.Route{Dst: toNet(netip.PrefixFrom(addr, addr.BitLen())), Gw: via.address.AsSlice()})
	})
}
