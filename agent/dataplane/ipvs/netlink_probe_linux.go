package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"sync"
	"unsafe"

	moby "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// probePort is the first port of a virtual server for a probe. Kube-proxy probes there
	// too.
	probePort = 20000
	// probePorts is the number of ports that are tried: other programs may have a virtual
	// server at some.
	probePorts = 4
	// probeTimeout marks such a virtual server as ours: no program remembers clients for so
	// many seconds.
	probeTimeout = 7_391_753
)

// probeKeys are the virtual servers for a probe, at unreachable addresses for documentation.
func probeKeys(f dataplane.Family) []Key {
	addr := netip.AddrFrom4([4]byte{198, 51, 100, 0})
	if f == dataplane.IPv6 {
		addr = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
	}
	var out []Key
	for i := range uint16(probePorts) {
		out = append(out, Key{Addr: addr, Port: probePort + i, Protocol: v1alpha1.ProtocolTCP})
	}
	return out
}

func probeServer(scheduler string) Server {
	return Server{Scheduler: scheduler, Flags: FlagPersistent, Timeout: probeTimeout}
}

// find makes the kernel load IPVS, and deletes what a killed Probe has left.
func (v *virtualServers) find() error {
	for _, k := range probeKeys(v.family) {
		switch has, err := v.one(k); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case has == probeServer(has.Scheduler):
			if err := v.DeleteServer(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// one reads a virtual server. The error wraps fs.ErrNotExist if it is missing.
func (v *virtualServers) one(k Key) (Server, error) {
	var s *moby.Service
	err := v.do(func(h *moby.Handle) (err error) {
		s, err = h.GetService(v.name(k))
		return err
	})
	if err != nil {
		return Server{}, v.serverError("read", k, Server{}, err)
	}
	got, server, ok := v.serverOf(s)
	if !ok || got != k {
		return Server{}, fmt.Errorf("read the virtual server %s: the kernel returns %s", k, got)
	}
	return server, nil
}

// Probe implements Kernel.
func (v *virtualServers) Probe(scheduler string) error {
	if err := v.find(); err != nil {
		return err
	}
	want := probeServer(scheduler)
	for _, k := range probeKeys(v.family) {
		err := v.AddServer(k, want)
		if errors.Is(err, fs.ErrExist) {
			continue // it is another program's
		}
		if err != nil {
			return err
		}
		has, err := v.one(k)
		if deleteErr := v.DeleteServer(k); deleteErr != nil {
			return errors.Join(err, deleteErr)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return unsupported("working IPVS", "it loses a virtual server that it has accepted; use another kernel, or choose another mode", err)
		case err != nil:
			return err
		case has != want:
			return alteredError(k, want, has)
		}
		return nil
	}
	var keys []string
	for _, k := range probeKeys(v.family) {
		keys = append(keys, k.String())
	}
	return fmt.Errorf("a check of IPVS needs a virtual server, and other programs have one at each of %s: delete one (ipvsadm -D -t ADDRESS:PORT)", strings.Join(keys, ", "))
}

// alteredError reports that the kernel alters what it has accepted.
func alteredError(k Key, want, has Server) error {
	return fmt.Errorf("%w: the kernel's IPVS alters virtual servers: one added at %s with %s has %s: use another kernel, or choose another mode",
		dataplane.ErrUnsupported, k, describe(want), describe(has))
}

// getInfo is IP_VS_SO_GET_INFO of the kernel's ip_vs.h.
const getInfo = 64 + 1024 + 64 + 1

// info is struct ip_vs_getinfo.
type info struct {
	version, tableSize uint32
	services           uint32 // of IPv4
}

// Count implements Kernel. For IPv6 it lists the virtual servers once, which is expensive:
// IP_VS_SO_GET_INFO only counts those of IPv4, IPVS_CMD_GET_INFO has no number, and
// /proc/net/ip_vs is also a list, with all real servers.
func (v *virtualServers) Count() (int, bool) {
	if v.family == dataplane.IPv6 {
		servers, err := v.read()
		return len(servers), err == nil
	}
	n, err := countIPv4()
	return n, err == nil
}

func countIPv4() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket to IPVS: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	var out info
	size := uint32(unsafe.Sizeof(out))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, getInfo,
		uintptr(unsafe.Pointer(&out)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("ask IPVS for the number of virtual servers: %w", errno)
	}
	return int(out.services), nil
}

// libraryNumber is the number of IPVS in the library's requests. The kernel assigns it when
// it loads the module. The library looks it up once in a process and has no function to
// change it when the module is loaded again. If a version of the library had it elsewhere,
// this would be a variable of our own, and the agent would report that it must be restarted.
//
//go:linkname libraryNumber github.com/moby/ipvs.ipvsFamily
var libraryNumber int

// numberMu guards libraryNumber, which both families share. The library reads it with each
// request and writes it with the first handle.
var numberMu sync.RWMutex
