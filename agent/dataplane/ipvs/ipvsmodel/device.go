package ipvsmodel

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
)

// Bound implements ipvs.Kernel.
func (k *Kernel) Bound() (addrs []netip.Addr, exists bool, err error) {
	err = k.call(Call{Method: "Bound"}, func() error {
		addrs, exists = slices.SortedFunc(maps.Keys(k.bound), netip.Addr.Compare), k.device
		return nil
	})
	return addrs, exists, err
}

// CreateDevice implements ipvs.Kernel.
func (k *Kernel) CreateDevice() error {
	return k.call(Call{Method: "CreateDevice"}, func() error {
		k.device = true
		return nil
	})
}

// DeleteDevice implements ipvs.Kernel.
func (k *Kernel) DeleteDevice() error {
	return k.call(Call{Method: "DeleteDevice"}, func() error {
		for _, a := range slices.SortedFunc(maps.Keys(k.bound), netip.Addr.Compare) {
			k.unbind(a)
		}
		if k.device {
			k.publish(ipvs.Event{Device: true, Removed: true})
		}
		k.device = false
		return nil
	})
}

// Bind implements ipvs.Kernel.
func (k *Kernel) Bind(a netip.Addr) error {
	return k.call(Call{Method: "Bind", Addr: a}, func() error {
		switch {
		case !k.device:
			return fmt.Errorf("bind %s: the device: %w", a, fs.ErrNotExist)
		case !k.family.Of(a):
			return fmt.Errorf("bind %s: not of %s", a, k.family)
		}
		if !k.bound[a] {
			k.bound[a] = true
			k.publish(ipvs.Event{Device: true, Addr: a})
		}
		return nil
	})
}

// Unbind implements ipvs.Kernel.
func (k *Kernel) Unbind(a netip.Addr) error {
	return k.call(Call{Method: "Unbind", Addr: a}, func() error {
		k.unbind(a)
		return nil
	})
}

func (k *Kernel) unbind(a netip.Addr) {
	if k.bound[a] {
		delete(k.bound, a)
		k.publish(ipvs.Event{Device: true, Addr: a, Removed: true})
	}
}

// Yield implements ipvs.Kernel.
func (k *Kernel) Yield(a, source netip.Addr) error {
	return k.call(Call{Method: "Yield", Addr: a}, func() error {
		if !slices.Contains(k.Tables.Addresses(), source) {
			return fmt.Errorf("%s is no address of the node", source)
		}
		k.yielded[a] = true
		k.unbind(a)
		return nil
	})
}

// Reclaim implements ipvs.Kernel.
func (k *Kernel) Reclaim(but []netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.yielded) == 0 {
		return nil // the kernel only reads
	}
	if err := k.begin(Call{Method: "Reclaim"}); err != nil {
		return err
	}
	maps.DeleteFunc(k.yielded, func(a netip.Addr, _ bool) bool { return !slices.Contains(but, a) })
	return nil
}

// Yielded returns the yielded addresses, sorted.
func (k *Kernel) Yielded() []netip.Addr {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(maps.Keys(k.yielded), netip.Addr.Compare)
}

// Addresses implements ipvs.Kernel.
func (k *Kernel) Addresses() (addrs []netip.Addr, err error) {
	err = k.call(Call{Method: "Addresses"}, func() error {
		addrs = slices.DeleteFunc(k.Tables.Addresses(), func(a netip.Addr) bool { return !k.family.Of(a) })
		return nil
	})
	return addrs, err
}

// SetAddresses replaces the addresses of the interfaces other than kube-ipvs0.
func (k *Kernel) SetAddresses(addresses ...netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.Tables.Addresses()
	k.Tables.SetAddresses(addresses...)
	after := k.Tables.Addresses()
	for _, a := range before {
		if !slices.Contains(after, a) {
			k.publish(ipvs.Event{Addr: a, Removed: true})
		}
	}
	for _, a := range after {
		if !slices.Contains(before, a) {
			k.publish(ipvs.Event{Addr: a})
		}
	}
}

// eventBuffer is how many events the kernel buffers for a listener.
const eventBuffer = 4096

// Events implements ipvs.Kernel.
func (k *Kernel) Events(done <-chan struct{}) (<-chan ipvs.Event, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Events"}); err != nil {
		return nil, err
	}
	c := make(chan ipvs.Event, eventBuffer)
	k.listeners[c] = struct{}{}
	go func() {
		<-done
		k.mu.Lock()
		defer k.mu.Unlock()
		k.hangUp(c)
	}()
	return c, nil
}

// publish sends an event to all listeners. The kernel is locked.
func (k *Kernel) publish(e ipvs.Event) {
	if e.Addr.IsValid() && !k.family.Of(e.Addr) {
		return
	}
	for c := range k.listeners {
		select {
		case c <- e:
		default:
			k.hangUp(c)
		}
	}
}

func (k *Kernel) hangUp(c chan ipvs.Event) {
	if _, ok := k.listeners[c]; ok {
		delete(k.listeners, c)
		close(c)
	}
}
