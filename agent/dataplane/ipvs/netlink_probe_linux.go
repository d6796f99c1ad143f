package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	moby "github.com/moby/ipvs"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// probePort is the first port of a virtual server made to see whether IPVS
	// works. Kube-proxy makes one there as well.
	probePort = 20000
	// probePorts are how many are tried: somebody may have a virtual server at
	// one of them.
	probePorts = 4
	// probeTimeout marks such a virtual server as ours. Nobody remembers clients
	// for so many seconds.
	probeTimeout = 7_391_753
)

// probeKeys are where a virtual server is made to see whether IPVS works: at
// addresses for documentation, which reach nobody.
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

// find makes the kernel load IPVS, and deletes what a Probe that was killed has
// left.
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

// one reads a virtual server. The error wraps fs.ErrNotExist where there is none.
func (v *virtualServers) one(k Key) (Server, error) {
	var s *moby.Service
	err := v.do(func(h *moby.Handle) (err error) {
		s, err = h.GetService(v.name(k))
		return err
	})
	if err != nil {
		return Server{}, v.serverError("reading", k, Server{}, err)
	}
	got, server, ok := v.serverOf(s)
	if !ok || got != k {
		return Server{}, fmt.Errorf("reading the virtual server %s: the kernel returns that of %s", k, got)
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
			return unsupported("working IPVS", "what it takes it does not hold; use another kernel, or choose another mode", err)
		case err != nil:
			return err
		case has != want:
			return otherwiseHeld(k, want, has)
		}
		return nil
	}
	var keys []string
	for _, k := range probeKeys(v.family) {
		keys = append(keys, k.String())
	}
	return fmt.Errorf("looking whether IPVS works takes a virtual server, and other programs have one at each of %s: delete one (ipvsadm -D -t ADDRESS:PORT)", strings.Join(keys, ", "))
}

// otherwiseHeld says that the kernel does not hold what it has taken.
func otherwiseHeld(k Key, want, has Server) error {
	return fmt.Errorf("%w: the kernel's IPVS does not keep what it is given: a virtual server made at %s with %s has %s: use another kernel, or choose another mode",
		dataplane.ErrUnsupported, k, describe(want), describe(has))
}
