package modes

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
)

// mortal is a kernel of which an agent is killed when it has written so often.
type mortal struct {
	ipvs.Kernel
	// left are the writes until then; negative: it lives.
	left atomic.Int64
	kill func()
}

var errKilled = errors.New("killed")

func (m *mortal) write(do func() error) error {
	switch left := m.left.Load(); {
	case left == 0:
		m.kill()
		return errKilled
	case left > 0:
		m.left.Add(-1)
	}
	return do()
}

func (m *mortal) ChangeSets(c []ipvs.SetChange) error {
	return m.write(func() error { return m.Kernel.ChangeSets(c) })
}

func (m *mortal) Bind(a netip.Addr) error {
	return m.write(func() error { return m.Kernel.Bind(a) })
}

func (m *mortal) AddServer(k ipvs.Key, s ipvs.Server) error {
	return m.write(func() error { return m.Kernel.AddServer(k, s) })
}

func (m *mortal) AddReal(k ipvs.Key, real netip.AddrPort, weight int) error {
	return m.write(func() error { return m.Kernel.AddReal(k, real, weight) })
}

func (m *mortal) DeleteServer(k ipvs.Key) error {
	return m.write(func() error { return m.Kernel.DeleteServer(k) })
}

func (m *mortal) Unbind(a netip.Addr) error {
	return m.write(func() error { return m.Kernel.Unbind(a) })
}

func (m *mortal) Yield(a, source netip.Addr) error {
	return m.write(func() error { return m.Kernel.Yield(a, source) })
}
