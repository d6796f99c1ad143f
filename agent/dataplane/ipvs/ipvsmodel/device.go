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
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Bound"}); err != nil {
		return nil, false, err
	}
	return slices.SortedFunc(maps.Keys(k.bound), netip.Addr.Compare), k.device, nil
}

// CreateDevice implements ipvs.Kernel.
func (k *Kernel) CreateDevice() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "CreateDevice"}); err != nil {
		return err
	}
	k.device = true
	return nil
}

// DeleteDevice implements ipvs.Kernel.
func (k *Kernel) DeleteDevice() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "DeleteDevice"}); err != nil {
		return err
	}
	for _, a := range slices.SortedFunc(maps.Keys(k.bound), netip.Addr.Compare) {
		k.tell(ipvs.Event{Device: true, Addr: a, Removed: true})
	}
	if k.device {
		k.tell(ipvs.Event{Device: true, Removed: true})
	}
	k.device = false
	clear(k.bound)
	return nil
}

// Bind implements ipvs.Kernel.
func (k *Kernel) Bind(a netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Bind", Addr: a}); err != nil {
		return err
	}
	switch {
	case !k.device:
		return fmt.Errorf("bind %s: the device: %w", a, fs.ErrNotExist)
	case !k.family.Of(a):
		return fmt.Errorf("bind %s: not of %s", a, k.family)
	}
	if !k.bound[a] {
		k.bound[a] = true
		k.tell(ipvs.Event{Device: true, Addr: a})
	}
	return nil
}

// Unbind implements ipvs.Kernel.
func (k *Kernel) Unbind(a netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Unbind", Addr: a}); err != nil {
		return err
	}
	if k.bound[a] {
		delete(k.bound, a)
		k.tell(ipvs.Event{Device: true, Addr: a, Removed: true})
	}
	return nil
}

// Yield implements ipvs.Kernel.
func (k *Kernel) Yield(a, source netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Yield", Addr: a}); err != nil {
		return err
	}
	if !slices.Contains(k.Tables.Addresses(), source) {
		return fmt.Errorf("%s is no address of the node", source)
	}
	k.yielded[a] = true
	if k.bound[a] {
		delete(k.bound, a)
		k.tell(ipvs.Event{Device: true, Addr: a, Removed: true})
	}
	return nil
}

// Reclaim implements ipvs.Kernel.
func (k *Kernel) Reclaim(but []netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.yielded) == 0 {
		return nil // it is read
	}
	if err := k.begin(Call{Method: "Reclaim"}); err != nil {
		return err
	}
	maps.DeleteFunc(k.yielded, func(a netip.Addr, _ bool) bool { return !slices.Contains(but, a) })
	return nil
}

// Yielded are the addresses that are yielded, sorted.
func (k *Kernel) Yielded() []netip.Addr {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(maps.Keys(k.yielded), netip.Addr.Compare)
}

// Addresses implements ipvs.Kernel.
func (k *Kernel) Addresses() ([]netip.Addr, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Addresses"}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(k.Tables.Addresses(), func(a netip.Addr) bool { return !k.family.Of(a) }), nil
}

// SetAddresses gives the node's interfaces besides kube-ipvs0 other addresses.
func (k *Kernel) SetAddresses(addresses ...netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.Tables.Addresses()
	k.Tables.SetAddresses(addresses...)
	after := k.Tables.Addresses()
	for _, a := range before {
		if !slices.Contains(after, a) {
			k.tell(ipvs.Event{Addr: a, Removed: true})
		}
	}
	for _, a := range after {
		if !slices.Contains(before, a) {
			k.tell(ipvs.Event{Addr: a})
		}
	}
}

// keptEvents is how many events the kernel keeps for one that does not read them.
const keptEvents = 4096

// Events implements ipvs.Kernel.
func (k *Kernel) Events(done <-chan struct{}) (<-chan ipvs.Event, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Lacks != nil {
		return nil, k.Lacks
	}
	c := make(chan ipvs.Event, keptEvents)
	k.listeners[c] = struct{}{}
	go func() {
		<-done
		k.mu.Lock()
		defer k.mu.Unlock()
		k.hangUp(c)
	}()
	return c, nil
}

// tell tells all listeners, with the kernel locked.
func (k *Kernel) tell(e ipvs.Event) {
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

// CutEvents lets all listeners miss what comes, as when there was more to tell
// than is kept.
func (k *Kernel) CutEvents() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.listeners {
		k.hangUp(c)
	}
}
