package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// exempts maps ipsets whose entries exempt a destination from another ipset to that one.
// Such an entry is added after the virtual server has changed, and removed before.
var exempts = map[string]string{
	setLoadBalancerLocal: setLoadBalancer,
	setNodePortLocalTCP:  setNodePortTCP,
	setNodePortLocalUDP:  setNodePortUDP,
	setNodePortLocalSCTP: setNodePortSCTP,
}

// orderedSets are the changes of ipsets in the order of writing.
type orderedSets struct {
	// early come before the changes of virtual servers, late after them: entries that
	// block clients exist as long as the real servers behind them. Closing come before
	// virtual servers are deleted: from then on their packets are rejected, which the
	// node's own servers would get otherwise.
	early, closing, late []SetChange
}

// orderChanges orders the changes of ipsets. Before and after report whether an entry was
// and will be desired, bound whether an address is on kube-ipvs0. Entries by which virtual
// servers are identified as ours are removed after these.
func (c *config) orderChanges(d *diff, before, after func(setEntry) bool, bound func(netip.Addr) bool) orderedSets {
	base := map[SetName]SetName{}
	for of, by := range exempts {
		base[c.set(of)] = c.set(by)
	}
	ends := func(e setEntry) bool {
		k, ok := parseKey(e.entry)
		if !ok || !c.passes(e.set) || !bound(k.Addr) {
			return false
		}
		_, extra := slices.BinarySearchFunc(d.extra, k, Key.Compare)
		return extra
	}
	var e, cl, l setChanges
	for _, entry := range d.add {
		if by := base[entry.set]; by != "" && before(setEntry{by, entry.entry}) {
			l.at(entry.set).Add = append(l.at(entry.set).Add, entry.entry)
		} else {
			e.at(entry.set).Add = append(e.at(entry.set).Add, entry.entry)
		}
	}
	for _, entry := range d.remove {
		to := &l
		switch by := base[entry.set]; {
		case by != "" && after(setEntry{by, entry.entry}):
			to = &e
		case ends(entry):
			to = &cl
		}
		to.at(entry.set).Remove = append(to.at(entry.set).Remove, entry.entry)
	}
	for _, name := range d.create {
		e.at(name).Create = true
	}
	return orderedSets{e.sorted(c), cl.sorted(c), l.sorted(c)}
}

// setChanges are changes by ipset.
type setChanges struct{ bySet map[SetName]*SetChange }

func (s *setChanges) at(name SetName) *SetChange {
	if s.bySet == nil {
		s.bySet = map[SetName]*SetChange{}
	}
	if s.bySet[name] == nil {
		s.bySet[name] = &SetChange{Name: name}
	}
	return s.bySet[name]
}

// sorted returns the changes in the order of writing. An address is restricted to source
// ranges last, after these are added, and this is removed first, before they are removed. One
// list never has both.
func (s *setChanges) sorted(c *config) []SetChange {
	var first, out, last []SetChange
	for _, t := range setTypes {
		change := s.bySet[c.set(t.name)]
		if change == nil {
			continue
		}
		change.Type = t.kind
		switch {
		case t.name != setLoadBalancerFW:
			out = append(out, *change)
		case len(change.Remove) > 0:
			first = append(first, *change)
		default:
			last = append(last, *change)
		}
	}
	return slices.Concat(first, out, last)
}

// writer writes a difference to the kernel.
type writer struct {
	*Dataplane
	ctx  context.Context //nolint:containedctx // it lives for one Apply
	diff *diff
	// changed are the Services of which something was written.
	changed map[dataplane.ServiceName]struct{}
	// failed are the Services that the kernel rejects, with the reason. Nil: the first
	// failure ends the writing.
	failed map[dataplane.ServiceName]string
	// come is the number of added virtual servers.
	come int
	// stuck are virtual servers that could not be deleted.
	stuck []string
	// writes counts virtual and real servers.
	writes int
	// pause is Ruleset.Pause, or nil if nothing may be left; large are the Services of which real
	// servers may be.
	pause func() bool
	large map[dataplane.ServiceName]struct{}
	// paused: real servers of unfinished Services are left for a later Apply. Reals counts the others.
	paused     bool
	reals      int
	unfinished map[dataplane.ServiceName]struct{}
}

const (
	// leastReals is how many real servers an Apply adds before it may pause: a few milliseconds.
	leastReals = 256
	// leastPerServer is how many each virtual server has all the same: without any it rejects
	// connections.
	leastPerServer = 2
)

// wrote reports progress now and then, given that a virtual or real server was written.
func (w *writer) wrote() {
	if w.writes++; w.writes%64 == 0 {
		dataplane.Progress(w.ctx)
	}
}

// pauses reports whether the real servers of a Service that are not written yet are left for a later
// Apply. It is called before each is added.
func (w *writer) pauses(owner dataplane.ServiceName) bool {
	if w.pause == nil {
		return false
	}
	if w.reals++; w.reals > leastReals && w.reals%64 == 0 {
		w.paused = w.paused || w.pause()
	}
	_, large := w.large[owner]
	return w.paused && large
}

// leave makes the plan of a virtual server what the kernel has after it has got some real servers. The
// former ones stay until all new ones are there.
func (w *writer) leave(d *serverDiff, got []netip.AddrPort) {
	reals := slices.Clone(got)
	if actual, found := w.actual.needs.servers[d.Key]; found {
		reals = append(reals, actual.reals...)
	}
	slices.SortFunc(reals, netip.AddrPort.Compare)
	d.reals = reals
	w.unfinished[d.owner] = struct{}{}
}

// bind creates the device and binds addresses.
func (w *writer) bind() error {
	if w.diff.device {
		if err := w.kernel.CreateDevice(); err != nil {
			return err
		}
	}
	for _, a := range w.diff.bind {
		if err := w.kernel.Bind(a); err != nil {
			return err
		}
	}
	return nil
}

// unbind removes addresses from the device.
func (w *writer) unbind() error {
	for _, a := range w.diff.unbind {
		if err := w.kernel.Unbind(a); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) writeSets(changes []SetChange) error {
	if len(changes) == 0 {
		return nil
	}
	return w.kernel.ChangeSets(changes)
}

func (w *writer) writeRules(want fixedrules.Rules, needed bool) error {
	if !needed {
		return nil
	}
	_, err := w.rules.Apply(w.ctx, want)
	return err
}

// writeServers writes the virtual servers that are missing or differ, with their real
// servers. A rejection by the kernel fails only the Service.
func (w *writer) writeServers() error { return w.eachServer(w.writeServer) }

// writeServersToBind adds the missing virtual servers on addresses that are not bound yet,
// without real servers. Once the addresses are bound, they reject packets that the node's own
// servers would get otherwise.
func (w *writer) writeServersToBind() error {
	return w.makeServers(func(a netip.Addr) bool {
		_, found := slices.BinarySearchFunc(w.diff.bind, a, netip.Addr.Compare)
		return found
	})
}

// makeServers adds the missing virtual servers on some addresses, without real servers.
func (w *writer) makeServers(on func(netip.Addr) bool) error {
	return w.eachServer(func(d *serverDiff) error {
		if !d.missing || !on(d.Key.Addr) {
			return nil
		}
		return w.addServer(d)
	})
}

// eachServer calls write for each virtual server that differs.
func (w *writer) eachServer(write func(*serverDiff) error) error {
	for i := range w.diff.servers {
		d := &w.diff.servers[i]
		if _, failed := w.failed[d.owner]; failed {
			continue
		}
		if i%64 == 0 {
			if err := w.ctx.Err(); err != nil {
				return fmt.Errorf("write virtual servers: %w", err)
			}
		}
		w.wrote()
		if err := write(d); err != nil {
			if w.failed == nil {
				return err
			}
			w.failed[d.owner] = fmt.Sprintf("virtual server %s: %v", d.Key, err)
			continue
		}
		w.changed[d.owner] = struct{}{}
	}
	for name := range w.failed {
		delete(w.changed, name)
	}
	return nil
}

// writeServer writes one. It adds real servers before it removes others.
func (w *writer) writeServer(d *serverDiff) error {
	w.known[d.Key] = d.owner
	switch {
	case d.missing:
		if err := w.addServer(d); err != nil {
			return err
		}
	case d.differs:
		if err := w.kernel.ChangeServer(d.Key, d.Server); err != nil {
			w.forgetScheduler(err)
			return err
		}
	}
	has := len(d.reals) - len(d.add)
	for i, real := range d.add {
		if w.pauses(d.owner) && has+i >= leastPerServer {
			w.leave(d, d.add[:i])
			return nil
		}
		if err := w.kernel.AddReal(d.Key, real, 1); err != nil {
			return err
		}
		w.wrote()
	}
	for _, real := range d.reweigh {
		if err := w.kernel.ChangeReal(d.Key, real, 1); err != nil {
			return err
		}
		w.draining.end(d.Key, real)
		w.wrote()
	}
	return w.drop(d.Key, d.drop)
}

func (w *writer) addServer(d *serverDiff) error {
	w.known[d.Key] = d.owner
	if err := w.kernel.AddServer(d.Key, d.Server); err != nil {
		if errors.Is(err, fs.ErrExist) {
			w.giveBack(d.Key)
		}
		w.forgetScheduler(err)
		return err
	}
	d.missing = false
	w.come++
	delete(w.draining, d.Key)
	return nil
}

// forgetScheduler makes a missing scheduler be probed again.
func (d *Dataplane) forgetScheduler(err error) {
	if missing, ok := errors.AsType[*SchedulerError](err); ok {
		delete(d.schedulers, missing.Scheduler)
	}
}

// giveBack undoes what makes a virtual server look like ours that another program has added
// in the meantime.
func (w *writer) giveBack(k Key) {
	delete(w.known, k)
	w.denied[k] = struct{}{}
	if slices.Contains(w.diff.bind, k.Addr) {
		_ = w.kernel.Unbind(k.Addr) // otherwise the next full pass does it
		w.diff.bind = slices.DeleteFunc(w.diff.bind, func(a netip.Addr) bool { return a == k.Addr })
	}
	var back setChanges
	for _, e := range w.diff.add {
		if strings.HasPrefix(string(e.entry)+",", string(keyEntry(k))+",") {
			back.at(e.set).Remove = append(back.at(e.set).Remove, e.entry)
		}
	}
	if len(back.bySet) > 0 {
		c := &config{family: w.family}
		_ = w.kernel.ChangeSets(back.sorted(c)) // likewise
	}
}

// drop deletes real servers, or lets them drain if they have connections. Only TCP drains:
// UDP has no end of a connection, and clients of SCTP change their path themselves.
func (w *writer) drop(k Key, reals []netip.AddrPort) error {
	if len(reals) == 0 {
		return nil
	}
	var have map[netip.AddrPort]Real
	if k.Protocol == v1alpha1.ProtocolTCP {
		var err error
		if have, err = w.kernel.Reals(k); err != nil {
			return err
		}
	}
	for _, real := range reals {
		w.wrote()
		if have[real].connections() == 0 {
			if err := w.kernel.DeleteReal(k, real); err != nil {
				return err
			}
			w.draining.end(k, real)
			continue
		}
		if have[real].Weight != 0 {
			if err := w.kernel.ChangeReal(k, real, 0); err != nil {
				return err
			}
		}
		w.drain(k, real)
	}
	return nil
}

// deleteServers deletes virtual servers that are no longer desired.
func (w *writer) deleteServers() error {
	for _, k := range w.diff.extra {
		if err := w.kernel.DeleteServer(k); err != nil {
			if w.failed == nil {
				return err
			}
			w.stuck = append(w.stuck, fmt.Sprintf("the virtual server %s, which no Service needs, cannot be deleted: %v", k, err))
			continue
		}
		if owner, known := w.known[k]; known {
			w.changed[owner] = struct{}{}
		}
		delete(w.known, k)
		delete(w.draining, k)
	}
	return nil
}
