package nftables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// largeService is how many elements a Service has for which others should not wait.
	largeService = 2_000
	// partElements is how many elements of a state are in memory at a time.
	partElements = 2_000
	// rejectedBatches and retriedBatches bound the batches with which rejected Services are found.
	rejectedBatches, retriedBatches = 64, 16
	// listTries is how often a part of a table is listed that changes meanwhile, and fullTries how often a
	// full pass begins.
	listTries, fullTries = 5, 3
	// samples is how many elements of a set are looked up that a listing lacks.
	samples = 64
	// maxServiceElements bounds the elements of one Service: up to 67 bytes each, 40 to delete it.
	// A batch that deletes as many of two Services and adds as many, because one takes the addresses
	// of the other, is below nft.MaxBatch. All within the limits of the API has fewer, with its
	// endpoints once more under policy Local; but these do not know how many addresses of a node serve
	// node ports. maxServiceRanges bounds the elements of source ranges, to which each destination
	// may add its own address.
	maxServiceElements = 2*v1alpha1.MaxServiceAddressEndpoints + destinationElements*(v1alpha1.MaxServicePortAddresses+v1alpha1.MaxServicePorts) + v1alpha1.MaxServiceEndpoints + maxServiceRanges
	maxServiceRanges   = v1alpha1.MaxServiceRestrictions + v1alpha1.MaxServicePortAddresses
	// destinationElements is as how many elements a destination counts besides its endpoints and
	// ranges: it has three, of which one has a comment.
	destinationElements = 5
	// replacedElements is how many elements of Services fit a batch that replaces the table.
	replacedElements = 300_000
)

// notOfServices are errors of which no Service is the cause.
func notOfServices() []error {
	return []error{unix.EPERM, unix.ENOMEM, unix.ENOBUFS, unix.EINTR}
}

// operations are what the engine has the data plane do.
type operations struct{ *Dataplane }

var _ engine.Operations = operations{}

// Open implements engine.Operations.
func (o operations) Open(context.Context) error { return o.connect() }

// Known implements engine.Operations.
func (o operations) Known() bool { return o.actual != nil }

// Recheck implements engine.Operations.
func (o operations) Recheck(_ context.Context, r *dataplane.Ruleset) (engine.Effect, error) {
	c, err := o.configFor(&r.Node)
	if err != nil {
		return engine.TakesFull, err
	}
	o.noteAddresses(c)
	if reflect.DeepEqual(c, o.config) {
		return engine.NoEffect, nil
	}
	same := *c
	if same.nodePortIPs = o.config.nodePortIPs; !reflect.DeepEqual(&same, o.config) {
		return engine.TakesFull, nil
	}
	o.next = c
	return engine.AllServices, nil
}

// Change implements engine.Operations.
func (o operations) Change(_ context.Context, r *dataplane.Ruleset, names []dataplane.ServiceName, all bool) (int, error) {
	c := o.config
	if all && o.next != nil {
		c, o.next = o.next, nil
	}
	o.services = r.Services
	plans := o.contest.plans(c, names, func(name dataplane.ServiceName) *dataplane.Service { return r.Services[name] },
		func(k key) dataplane.ServiceName { return o.actual.destinations[k].service },
		func(name dataplane.ServiceName) *servicePlan { return o.actual.services[name] })
	gone := endpointsOf{}
	changed, err := o.write(plans, o.engine.Rejected, false, func(batch []dataplane.ServiceName) error {
		u, b := c.newUpdate(o.actual), &nft.Batch{}
		for _, name := range batch {
			u.set(name, plans[name])
		}
		// In a batch of their own: a packet that is under way may find an element of the next batch, but
		// no rules of a chain that is as new.
		u.layout(b)
		if err := o.kernel.Commit(b, 0); err != nil {
			return err
		}
		u.laidOut()
		b.Reset()
		u.batch(b)
		if err := o.kernel.Commit(b, 0); err != nil {
			return err
		}
		u.done()
		for k, endpoints := range u.dropped {
			gone.add(k, endpoints)
		}
		return nil
	})
	if err = errors.Join(err, o.forgetClients(c, gone)); err != nil { // what was written stays
		return 0, fmt.Errorf("%w: %w", engine.ErrFull, err)
	}
	o.config = c
	return changed, nil
}

// write writes plans by batches, and notes which Services the kernel rejects, of which previous were
// rejected before. It returns how many were written. Unless it is final, a table that is not as it
// should be is an error, and no rejection.
func (o operations) write(plans map[dataplane.ServiceName]*servicePlan, previous map[dataplane.ServiceName]engine.Rejection[servicePlan],
	final bool, write func([]dataplane.ServiceName) error) (int, error) {
	iso := engine.Isolation[servicePlan]{
		Limit: rejectedBatches, RetryLimit: retriedBatches, Capacity: o.batch, LargeSize: largeService,
		Size: func(name dataplane.ServiceName) int {
			if o.actual == nil {
				return plans[name].size()
			}
			return max(plans[name].size(), o.actual.services[name].size()) // one that ends is deleted
		},
		Rejection: func(err error) bool {
			rejected, ok := errors.AsType[*nft.RejectedError](err)
			return ok && rejected.Message >= 0 && (final || !outdated(err)) && !slices.ContainsFunc(notOfServices(), func(of error) bool { return errors.Is(err, of) })
		},
		Suspects: func([]dataplane.ServiceName, error) (suspects, rest []dataplane.ServiceName) { return nil, nil },
		Previous: previous, Rejected: map[dataplane.ServiceName]engine.Rejection[servicePlan]{}, Changed: map[dataplane.ServiceName]struct{}{},
	}
	var names []dataplane.ServiceName
	for _, name := range slices.SortedFunc(maps.Keys(plans), dataplane.ServiceName.Compare) {
		if reason := plans[name].tooLarge(); reason != "" {
			iso.Rejected[name] = engine.Rejection[servicePlan]{Reason: reason, Proven: true}
			continue
		}
		names = append(names, name)
	}
	if err := iso.Write(names, write); err != nil {
		return 0, err
	}
	rejected := maps.Clone(previous)
	for name := range plans {
		delete(rejected, name)
	}
	maps.Copy(rejected, iso.Rejected)
	o.engine.Rejected = rejected
	return len(iso.Changed), nil
}

// tooLarge is why a plan is too large for the kernel; empty: it is not.
func (p *servicePlan) tooLarge() string {
	if n := p.size(); n > maxServiceElements {
		return fmt.Sprintf("the Service takes about %d elements of table %s, more than %d", n, TableName, maxServiceElements)
	}
	if p == nil {
		return ""
	}
	ranges := 0
	for i := range p.destinations {
		ranges += len(p.destinations[i].ranges)
	}
	if ranges > maxServiceRanges {
		return fmt.Sprintf("the Service takes %d elements of sets %s*, one for each source range and address and port of a load balancer, more than %d", ranges, rangesPrefix, maxServiceRanges)
	}
	return ""
}

// size is about how many elements a plan has; a nil plan has none.
func (p *servicePlan) size() int {
	if p == nil {
		return 0
	}
	n := 1 + len(p.hairpin)
	for i := range p.destinations {
		n += p.destinations[i].size()
	}
	return n
}

// size is about how many elements a destination has.
func (d *destination) size() int {
	return destinationElements + len(d.endpoints) + len(d.local) + len(d.ranges)
}

// endpointsOf are endpoints by destination, both as elements have them: so looking one up allocates nothing.
type endpointsOf map[string]map[string]struct{}

func (e endpointsOf) add(k key, endpoints []netip.AddrPort) {
	of := string(k.bytes())
	if e[of] == nil {
		e[of] = make(map[string]struct{}, len(endpoints))
	}
	for _, one := range endpoints {
		e[of][string(endpointData(one))] = struct{}{}
	}
}

// forgetClients lets clients that keep an endpoint which is gone get another one.
//
// It lists all clients, because only packets know which there are: the kernel reports none that they add, and
// finds none by its endpoint. Only a Change by which an endpoint of a Service with session affinity goes pays
// for that, once and after its batches, for which these clients and the next write wait. A client takes about 1 µs to
// read, as other elements do (37 ms for 55,000): 10 ms on a node with 10,000. The million that there can be
// takes about a second, after which the sync loop pauses for at least half as long.
func (o operations) forgetClients(c *config, gone endpointsOf) error {
	if len(gone) == 0 {
		return nil
	}
	at := int(c.header().length)
	return o.forget(c, func(e *nft.Element) bool {
		_, found := gone[string(e.Key[at:])][string(e.Data)]
		return found
	})
}

// forgetOthers does so for clients whose destination does not choose from their endpoint, whatever it
// was before. Under policy Local pods and the node choose again, too.
func (o operations) forgetOthers(c *config, s *state) error {
	if len(numbers(s.numbered, affinePrefix)) == 0 {
		return nil
	}
	at := int(c.header().length)
	keeps := endpointsOf{}
	return o.forget(c, func(e *nft.Element) bool {
		to := e.Key[at:]
		if _, known := keeps[string(to)]; !known {
			if k, err := c.parseKey(to); err == nil {
				keeps.add(k, s.destinations[k].kept())
			}
		}
		_, found := keeps[string(to)][string(e.Data)]
		return !found
	})
}

// kept are the endpoints that affine clients of a destination may keep.
func (o owned) kept() []netip.AddrPort {
	switch {
	case o.destination == nil || o.affinity == 0:
		return nil
	case o.chain.local:
		return o.local
	default:
		return o.endpoints
	}
}

// forget deletes clients. An interrupted listing counts: packets add clients, and others expire, in any listing.
func (o operations) forget(c *config, which func(*nft.Element) bool) error {
	var clients []nft.Element
	err := o.kernel.Elements(c.table(), setAffinity, func(e *nft.Element) {
		if which(e) {
			clients = append(clients, nft.Element{Key: slices.Clone(e.Key)})
		}
	})
	if err != nil && !errors.Is(err, nft.ErrInterrupted) {
		return fmt.Errorf("list the clients of session affinity: %w", err)
	}
	for part := range slices.Chunk(clients, o.batch) {
		if err := o.forgetAll(c, part); err != nil {
			return fmt.Errorf("delete clients of session affinity: %w", err)
		}
	}
	return nil
}

// forgetAll deletes elements, of which some may have expired: then the kernel rejects their batch.
func (o operations) forgetAll(c *config, clients []nft.Element) error {
	var b nft.Batch
	for i := range clients {
		b.DeleteElement(c.table(), setAffinity, &clients[i])
	}
	err := o.kernel.Commit(&b, 0)
	switch half := len(clients) / 2; {
	case !errors.Is(err, unix.ENOENT):
		return err
	case half == 0:
		return nil
	default:
		if err := o.forgetAll(c, clients[:half]); err != nil {
			return err
		}
		return o.forgetAll(c, clients[half:])
	}
}

func namesOf(r *dataplane.Ruleset) []dataplane.ServiceName {
	return slices.SortedFunc(maps.Keys(r.Services), dataplane.ServiceName.Compare)
}

// Large implements engine.Operations.
func (o operations) Large(name dataplane.ServiceName, svc *dataplane.Service) bool {
	size := o.actual.services[name].size()
	if svc != nil && size <= largeService {
		plan := o.config.planService(svc)
		size = plan.size()
	}
	return size > largeService
}

// Conflicts implements engine.Operations.
func (o operations) Conflicts() iter.Seq2[dataplane.ServiceName, engine.Conflict] {
	return func(yield func(dataplane.ServiceName, engine.Conflict) bool) {
		for name := range o.contest.lost {
			if !yield(name, engine.Conflict{Reason: o.contest.reason(name), Served: o.services[name]}) {
				return
			}
		}
	}
}
