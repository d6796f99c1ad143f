package ipvs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"sync"
	"time"

	moby "github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

const (
	// flagHashed is a flag that the kernel sets on each listed virtual server.
	flagHashed Flags = 0x2
	// serversTries bounds how often virtual servers are read that change meanwhile.
	serversTries = 10
)

// virtualServers are those of one IP family. Their library is not safe for concurrent use.
type virtualServers struct {
	family dataplane.Family

	mu sync.Mutex
	// handle is nil until it is needed, and after an error of its socket.
	handle *moby.Handle
}

// errRenumbered means that the kernel has IPVS by another number, or not at all.
var errRenumbered = errors.New("the kernel does not know IPVS by its previous number, because the module ip_vs has been unloaded; restart the agent")

// do runs f with an open handle, twice if the number of IPVS has changed, because ip_vs may
// have been loaded again.
func (v *virtualServers) do(f func(*moby.Handle) error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.try(f)
	if errors.Is(err, errRenumbered) {
		err = v.try(f)
	}
	return err
}

// try runs f with an open handle. An error that is not the kernel's answer closes it.
func (v *virtualServers) try(f func(*moby.Handle) error) error {
	if v.handle == nil {
		h, err := openIPVS()
		if err != nil {
			return err
		}
		v.handle = h
	}
	numberMu.RLock()
	defer numberMu.RUnlock()
	err := f(v.handle)
	if errors.Is(err, unix.ENOENT) {
		// The answer would be the same if it were not from IPVS.
		if _, other := timeouts(v.handle); other != nil {
			err = other
		}
	}
	if err != nil && !isAnswer(err) {
		v.handle.Close()
		v.handle = nil
	}
	return err
}

// openIPVS opens a socket to IPVS. The library asks the kernel for the number of IPVS once
// in a process. Without IPVS it continues with another number, and the kernel reports
// success for everything and does nothing. This asks the kernel, which makes it load
// the module, and the number is set in the library.
func openIPVS() (*moby.Handle, error) {
	numberMu.Lock()
	defer numberMu.Unlock()
	ipvs, err := netlink.GenlFamilyGet("IPVS")
	switch {
	case err == nil:
	case isPermission(err):
		return nil, unsupported("IPVS", "", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPROTONOSUPPORT): // the latter without generic netlink
		return nil, &NoIPVSError{unsupported("IPVS", "load the module ip_vs (modprobe ip_vs) on the node, or choose another mode", err)}
	default:
		return nil, fmt.Errorf("ask the kernel for IPVS: %w", err)
	}
	// The library also runs modprobe, and logs an error if there is none, as in our
	// container. It logs nothing else.
	logrus.SetOutput(io.Discard)
	h, err := moby.New("")
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for IPVS: %w", err)
	}
	libraryNumber = int(ipvs.ID)
	if _, err := timeouts(h); err != nil {
		h.Close()
		if isPermission(err) {
			return nil, unsupported("IPVS", "", err)
		}
		return nil, err
	}
	return h, nil
}

// timeouts reads the timeouts, which proves that IPVS answers.
func timeouts(h *moby.Handle) (c *moby.Config, err error) {
	defer func() {
		if recover() != nil { // the library relies on an answer
			err = errRenumbered
		}
	}()
	c, err = h.GetConfig()
	if errors.Is(err, unix.ENOENT) {
		err = errRenumbered
	}
	return c, err
}

// name identifies a virtual server for the library.
func (v *virtualServers) name(k Key) *moby.Service {
	s := &moby.Service{
		Address: k.Addr.AsSlice(), Port: k.Port, Protocol: uint16(dataplane.ProtocolNumber(k.Protocol)),
		AddressFamily: uint16(v.family.Number()), Netmask: 0xffffffff,
	}
	if v.family == dataplane.IPv6 {
		s.Netmask = 128 // here it is the length
	}
	return s
}

// service converts a virtual server for the library.
func (v *virtualServers) service(k Key, s Server) *moby.Service {
	out := v.name(k)
	out.SchedName, out.Flags, out.Timeout = s.Scheduler, uint32(s.Flags), s.Timeout
	return out
}

// serverOf converts what the library has read. It returns false for virtual servers without a
// Key: those of the other family, of a firewall mark, and of other protocols.
func (v *virtualServers) serverOf(s *moby.Service) (Key, Server, bool) {
	addr, ok := netip.AddrFromSlice(s.Address)
	if !ok || s.FWMark != 0 || s.AddressFamily != uint16(v.family.Number()) {
		return Key{}, Server{}, false
	}
	k := Key{Addr: addr, Port: s.Port, Protocol: dataplane.ProtocolOf(byte(s.Protocol))}
	out := Server{Scheduler: s.SchedName, Flags: Flags(s.Flags) &^ flagHashed}
	if out.Flags&FlagPersistent != 0 {
		out.Timeout = s.Timeout
	}
	return k, out, k.Protocol != ""
}

// Servers implements Kernel. The kernel sends the list in parts and finds the next one by
// counting, so the deletion of one, even of the other family or another network namespace,
// hides others. The list is therefore read until it is the same twice.
func (v *virtualServers) Servers() (map[Key]Server, error) {
	var before map[Key]Server
	for range serversTries {
		now, err := v.read()
		if err != nil {
			return nil, fmt.Errorf("read the virtual servers of IPVS: %w", err)
		}
		if before != nil && maps.Equal(before, now) {
			return now, nil
		}
		before = now
	}
	return nil, fmt.Errorf("read the virtual servers of IPVS: they were different each of %d times", serversTries)
}

func (v *virtualServers) read() (map[Key]Server, error) {
	var list []*moby.Service
	err := v.do(func(h *moby.Handle) (err error) {
		list, err = h.GetServices()
		return err
	})
	servers := make(map[Key]Server, len(list))
	for _, s := range list {
		if k, server, ok := v.serverOf(s); ok {
			servers[k] = server
		}
	}
	return servers, err
}

// Reals implements Kernel.
func (v *virtualServers) Reals(k Key) (map[netip.AddrPort]Real, error) {
	var list []*moby.Destination
	err := v.do(func(h *moby.Handle) (err error) {
		list, err = h.GetDestinations(v.name(k))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the real servers of %s: %w", k, err)
	}
	reals := make(map[netip.AddrPort]Real, len(list))
	for _, d := range list {
		addr, ok := netip.AddrFromSlice(d.Address)
		if !ok {
			return nil, fmt.Errorf("read the real servers of %s: one has no address", k)
		}
		// The library reads only the lower 16 bits of a weight.
		reals[netip.AddrPortFrom(addr, d.Port)] = Real{
			Weight: d.Weight, Active: d.ActiveConnections, Inactive: d.InactiveConnections,
			Forwarding: d.ConnectionFlags & moby.ConnectionFlagFwdMask,
		}
	}
	return reals, nil
}

// AddServer implements Kernel.
func (v *virtualServers) AddServer(k Key, s Server) error {
	err := v.do(func(h *moby.Handle) error { return h.NewService(v.service(k, s)) })
	return v.serverError("add", k, s, err)
}

// ChangeServer implements Kernel.
func (v *virtualServers) ChangeServer(k Key, s Server) error {
	err := v.do(func(h *moby.Handle) error { return h.UpdateService(v.service(k, s)) })
	return v.serverError("change", k, s, err)
}

// serverError explains the kernel's answer. The kernel looks for the scheduler first.
func (v *virtualServers) serverError(doing string, k Key, s Server, err error) error {
	switch {
	case err == nil || errors.Is(err, dataplane.ErrUnsupported):
		return err
	case errors.Is(err, unix.ENOENT):
		return &SchedulerError{Scheduler: s.Scheduler}
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%s the virtual server %s: it is missing: %w", doing, k, fs.ErrNotExist)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return &NoIPVSError{fmt.Errorf("%w: the kernel's IPVS lacks %s: use a kernel with CONFIG_IP_VS_IPV6, or choose another mode: %w", dataplane.ErrUnsupported, v.family, err)}
	default:
		return fmt.Errorf("%s the virtual server %s: %w", doing, k, err)
	}
}

// DeleteServer implements Kernel.
func (v *virtualServers) DeleteServer(k Key) error {
	err := v.do(func(h *moby.Handle) error { return h.DelService(v.name(k)) })
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete the virtual server %s: %w", k, err)
	}
	return nil
}

func realServer(real netip.AddrPort, weight int) *moby.Destination {
	return &moby.Destination{
		Address: real.Addr().AsSlice(), Port: real.Port(), Weight: weight, ConnectionFlags: moby.ConnectionFlagMasq,
	}
}

// AddReal implements Kernel.
func (v *virtualServers) AddReal(k Key, real netip.AddrPort, weight int) error {
	err := v.do(func(h *moby.Handle) error { return h.NewDestination(v.name(k), realServer(real, weight)) })
	return realError("add", k, real, err)
}

// ChangeReal implements Kernel.
func (v *virtualServers) ChangeReal(k Key, real netip.AddrPort, weight int) error {
	err := v.do(func(h *moby.Handle) error { return h.UpdateDestination(v.name(k), realServer(real, weight)) })
	return realError("change", k, real, err)
}

// DeleteReal implements Kernel.
func (v *virtualServers) DeleteReal(k Key, real netip.AddrPort) error {
	err := v.do(func(h *moby.Handle) error { return h.DelDestination(v.name(k), realServer(real, 0)) })
	if err = realError("delete", k, real, err); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func realError(doing string, k Key, real netip.AddrPort, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%s the real server %s of %s: the virtual server is missing: %w", doing, real, k, fs.ErrNotExist)
	default: // ENOENT wraps fs.ErrNotExist, EEXIST wraps fs.ErrExist
		return fmt.Errorf("%s the real server %s of %s: %w", doing, real, k, err)
	}
}

// Timeouts implements Kernel.
func (v *virtualServers) Timeouts() (Timeouts, error) {
	var c *moby.Config
	err := v.do(func(h *moby.Handle) (err error) {
		c, err = timeouts(h)
		return err
	})
	if err != nil {
		return Timeouts{}, fmt.Errorf("read the timeouts of IPVS: %w", err)
	}
	return Timeouts{
		TCP: uint32(c.TimeoutTCP / time.Second), TCPFin: uint32(c.TimeoutTCPFin / time.Second), UDP: uint32(c.TimeoutUDP / time.Second),
	}, nil
}

// SetTimeouts implements Kernel. The kernel ignores what is 0.
func (v *virtualServers) SetTimeouts(t Timeouts) error {
	err := v.do(func(h *moby.Handle) error {
		return h.SetConfig(&moby.Config{
			TimeoutTCP: time.Duration(t.TCP) * time.Second, TimeoutTCPFin: time.Duration(t.TCPFin) * time.Second,
			TimeoutUDP: time.Duration(t.UDP) * time.Second,
		})
	})
	if err != nil {
		return fmt.Errorf("set the timeouts of IPVS: %w", err)
	}
	return nil
}
