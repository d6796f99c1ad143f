package desired

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// entry is what is known of one Service.
type entry struct {
	name dataplane.ServiceName
	// rules is the newest state that this agent understands; nil when there has
	// been none. Never changed, only replaced.
	rules *v1alpha1.ServiceProxyRules
	// live: the object exists. A Service that is not live is held.
	live bool
	// vanishedIn is the number of the first set of the list without a held
	// Service, vanishedAt the time.
	vanishedIn uint64
	vanishedAt time.Time
	// refused says why the newest state of the object is not used. Empty: it is.
	refused string
	// problems is what was last said of entries that cannot be used.
	problems string
}

// Precedes implements combine.Claimant: by precedence, then by the lower name.
func (e *entry) Precedes(o *entry) bool {
	return cmp.Or(e.precedence().Compare(o.precedence()), e.name.Compare(o.name)) < 0
}

func (e *entry) precedence() dataplane.Precedence {
	p := dataplane.Precedence{Retained: !e.live}
	if e.rules != nil {
		p.Created = e.rules.Spec.ServiceCreated.Time
	}
	return p
}

// Store holds what is wanted: all ServiceProxyRules, this node's
// NodeProxyRules and the inventory. It knows what has changed since it was
// last asked, and keeps what has vanished without being released.
//
// The watches write to it and the sync loop reads from it. It keeps the
// objects it is given and their memory; nobody may change them any more.
type Store struct {
	clock    clock.PassiveClock
	nodeName string
	Formats  Formats
	report   func(service dataplane.ServiceName, problem string)
	// lastHealth is what health last returned. It is not changed any more.
	lastHealth atomic.Pointer[health.State]

	mu sync.Mutex // guards everything below

	services  map[dataplane.ServiceName]*entry
	held      map[dataplane.ServiceName]*entry // those of services that are not live
	foreign   map[dataplane.ServiceName]*entry // those whose newest state is refused
	odd       map[string]struct{}              // names of objects that are no Service's
	claims    combine.Registry[*entry]
	changes   changeLog
	inventory *inventory
	// confirmed: list and inventory have agreed since the start, so that what
	// belongs to no Service may be removed.
	confirmed bool
	// unconfirmedSince is when list and inventory ceased to agree; zero while
	// they do.
	unconfirmedSince time.Time
	// newestVersion is the newest resourceVersion of a ServiceProxyRules seen.
	newestVersion string
	// restored is what stands in for what the API has not shown since the start,
	// old names the Services that it has not shown, whose rules in the kernel may
	// be newer. former looks for a last good set that holds other names than a
	// first list; nil: there is none. diskWarning says why none can be written.
	restored    Restored
	old         map[dataplane.ServiceName]struct{}
	former      func(names int, hash uint64) *checkpoint.Restorable
	diskWarning string
	// pending: something has come that a sync has to take up; see takeNews.
	pending bool

	// rules is the own object as last seen, existing or not; current is the last
	// one that was accepted, refusal why the newest is not.
	rules       *v1alpha1.NodeProxyRules
	rulesExists bool
	rulesListed bool
	current     *v1alpha1.NodeProxyRules
	refusal     *Refusal
	members     map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints
	settings    *v1alpha1.ProxySettings // of current, complete
	// mode is which mode runs; see mode.go. Ran is the one that we ran last, be it
	// before the start; empty: unknown, or another proxy has run since.
	mode ModeChoice
	ran  v1alpha1.ProxyMode

	// dirty names Services to combine again. True: to program again even if
	// the outcome is the same.
	dirty map[dataplane.ServiceName]bool
	// aside are changes that wait until they are dirty again; see choose. Chosen is what
	// had come when the last batch was chosen.
	aside  map[dataplane.ServiceName]setAside
	chosen Applied
	// moved are the Services between which claims have moved since they were combined.
	moved map[dataplane.ServiceName]map[dataplane.ServiceName]struct{}
	// turns number those that namespaces with costly changes have had, turn is the last.
	turns    map[string]int
	turn     int
	families map[dataplane.Family]*familyState
	applied  Applied
	complete bool // a first complete set has been applied
	// shownServed: since the start one has been applied, or compared, all of which
	// the API has shown.
	shownServed bool
	// epoch counts how often what is known of the kernel was dropped, and
	// conflictFound is what the stored status said at first; see turn.go.
	epoch         int
	conflictFound bool
	// proxyListed: the API has shown whether there is a NodeProxy; proxyLive: there
	// is one that is not being deleted. removal is what follows if it is.
	proxyListed, proxyLive bool
	removal                Removal
	// otherProxy: another proxy is or has just been active on the node.
	otherProxy bool
}

// Options are what a Store needs.
type Options struct {
	Clock    clock.PassiveClock
	NodeName string
	Families []dataplane.Family
	// Formats are the versions of rendered objects that the agent understands.
	// None: those of this release.
	Formats []int32
	// Report is called with what is wrong with entries of a Service, once.
	Report func(service dataplane.ServiceName, problem string)
	// Former returns a checkpoint that has other names than a first list; nil: there
	// is none.
	Former func(names int, hash uint64) *checkpoint.Restorable
}

// New returns a Store that nothing is known to yet.
func New(o Options) *Store {
	s := &Store{
		clock:            o.Clock,
		nodeName:         o.NodeName,
		Formats:          formatsOf(o.Formats),
		report:           o.Report,
		former:           o.Former,
		services:         map[dataplane.ServiceName]*entry{},
		held:             map[dataplane.ServiceName]*entry{},
		foreign:          map[dataplane.ServiceName]*entry{},
		odd:              map[string]struct{}{},
		old:              map[dataplane.ServiceName]struct{}{},
		claims:           combine.Registry[*entry]{},
		changes:          newChangeLog(o.Clock.Now()),
		inventory:        newInventory(),
		unconfirmedSince: o.Clock.Now(),
		members:          map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints{},
		dirty:            map[dataplane.ServiceName]bool{},
		aside:            map[dataplane.ServiceName]setAside{},
		moved:            map[dataplane.ServiceName]map[dataplane.ServiceName]struct{}{},
		turns:            map[string]int{},
		families:         map[dataplane.Family]*familyState{},
	}
	for _, family := range o.Families {
		s.families[family] = newFamilyState()
	}
	s.Health() // so that there is a last one
	return s
}

// SetServices takes a new, complete list. What was there and is not in it
// has vanished.
func (s *Store) SetServices(list []*v1alpha1.ServiceProxyRules) {
	lacked := s.lackedBy(list) // reads a file
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if lacked != nil {
		s.restoreServices(lacked, now)
	}
	present := make(map[string]struct{}, len(list))
	var add, remove []string
	for _, object := range list {
		present[object.Name] = struct{}{}
		if object.Spec.Released {
			remove = append(remove, object.Name)
		} else {
			add = append(add, object.Name)
		}
	}
	for name := range s.inventory.names {
		if _, found := present[name]; !found {
			remove = append(remove, name)
		}
	}
	maps.DeleteFunc(s.odd, func(name string, _ struct{}) bool { _, found := present[name]; return !found })
	number := s.inventory.change(now, add, remove)
	for _, e := range s.services {
		if _, found := present[v1alpha1.ServiceProxyRulesName(e.name.Namespace, e.name.Name)]; !found && e.live {
			s.vanish(e, number, now)
		}
	}
	for _, object := range list {
		s.take(object, claimChange{}, now)
	}
	if !s.inventory.listed {
		s.inventory.listed, s.pending = true, true // even if it is empty
		s.listArrived(now)
	}
	s.reconcile(now)
}

// SetService takes a new or changed object.
func (s *Store) SetService(object *v1alpha1.ServiceProxyRules) {
	claims := s.claimChangeTo(object)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if object.Spec.Released {
		s.inventory.change(now, nil, []string{object.Name})
	} else {
		s.inventory.change(now, []string{object.Name}, nil)
	}
	s.take(object, claims, now)
	s.reconcile(now)
}

// claimChange is what two states of a Service claim; a nil former stands for none. The zero
// value stands for no object.
type claimChange struct {
	former, object *v1alpha1.ServiceProxyRules
	before, after  []combine.Asked
}

func newClaimChange(former, object *v1alpha1.ServiceProxyRules) claimChange {
	c := claimChange{former: former, object: object, after: combine.Claims(&object.Spec)}
	if former != nil {
		c.before = combine.Claims(&former.Spec)
	}
	return c
}

// claimChangeTo lists the claims that object changes. A Service may claim as much as its
// limits allow, and meanwhile others need the store.
func (s *Store) claimChangeTo(object *v1alpha1.ServiceProxyRules) claimChange {
	name, _ := combine.ServiceOf(object.Name)
	var former *v1alpha1.ServiceProxyRules
	s.mu.Lock()
	if e := s.services[name]; e != nil {
		former = e.rules
	}
	s.mu.Unlock()
	if _, excess := v1alpha1.SizeOf(&object.Spec).Excess(); excess != "" || object.Spec.Released {
		return claimChange{}
	}
	if former != nil && combine.SameClaims(&former.Spec, &object.Spec) {
		return claimChange{}
	}
	return newClaimChange(former, object)
}

// DeleteService takes the last state of a deleted object: released, the
// Service has ended; else its rules are held.
func (s *Store) DeleteService(object *v1alpha1.ServiceProxyRules) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	number := s.inventory.change(now, nil, []string{object.Name})
	s.noteVersion(object.ResourceVersion)
	delete(s.odd, object.Name)
	name, _ := combine.ServiceOf(object.Name)
	if e := s.services[name]; e != nil {
		if object.Spec.Released && s.Formats.know(object.Spec.FormatVersion) {
			s.drop(e, now)
		} else if e.live {
			s.vanish(e, number, now)
		}
	}
	s.reconcile(now)
}

// take stores the state of an existing object, whose claims may be listed already. The
// caller holds mu.
func (s *Store) take(object *v1alpha1.ServiceProxyRules, claims claimChange, now time.Time) {
	s.noteVersion(object.ResourceVersion)
	name, ok := combine.ServiceOf(object.Name)
	if !ok {
		if _, said := s.odd[object.Name]; said {
			return
		}
		s.odd[object.Name] = struct{}{}
		s.report(name, fmt.Sprintf("ServiceProxyRules %q is not named <namespace>.<service>; it is ignored, the controller renders none like it", object.Name))
		return
	}
	e := s.services[name]
	if object.Spec.Released && s.Formats.know(object.Spec.FormatVersion) {
		if e == nil { // what an earlier run of the agent has programmed
			s.mark(name, true, now)
		} else {
			s.drop(e, now)
		}
		return
	}
	if e == nil {
		e = &entry{name: name}
		s.services[name] = e
	}
	returned := !e.live
	e.live = true
	delete(s.held, name)
	refused := ""
	if !s.Formats.know(object.Spec.FormatVersion) {
		refused = s.Formats.unknown(object.Spec.FormatVersion)
	} else if _, refused = v1alpha1.SizeOf(&object.Spec).Excess(); refused != "" { // before anything is expanded
		s.renew(name, now)
	}
	if refused != "" {
		e.refused = refused + "; its rules stay as they are"
		s.foreign[name] = e
		if returned && e.rules != nil {
			s.reclaim(e, now)
		}
		return
	}
	s.understand(e, now)
	if e.rules != nil && e.rules.UID == object.UID && e.rules.Generation == object.Generation && object.Generation != 0 && !returned {
		e.rules = object
		return
	}
	s.adopt(e, object, claims, returned, now)
}

// adopt makes object the state that is desired. The caller holds mu.
func (s *Store) adopt(e *entry, object *v1alpha1.ServiceProxyRules, claims claimChange, returned bool, now time.Time) {
	s.renew(e.name, now)
	former := e.rules
	e.rules = object
	s.noteChange(e.name, former, object)
	if former == nil || returned || !combine.SameClaims(&former.Spec, &object.Spec) {
		if claims.object != object || claims.former != former {
			claims = newClaimChange(former, object)
		}
		s.markMoved(e, s.claims.Set(e, claims.before, claims.after), now)
	}
	s.mark(e.name, false, now)
}

// vanish starts to hold a Service. The caller holds mu.
func (s *Store) vanish(e *entry, number uint64, now time.Time) {
	e.live = false
	e.vanishedIn, e.vanishedAt = number, now
	if s.removal.Wanted { // there is nothing to hold
		s.drop(e, now)
		return
	}
	s.held[e.name] = e
	if e.rules == nil {
		return // what the kernel has of it is not known: until it has ended nothing is pruned
	}
	s.understand(e, now)
	s.reclaim(e, now)
}

// reclaim claims anew what a Service claims, after it has vanished or returned: what
// its claims are worth has changed. The caller holds mu.
func (s *Store) reclaim(e *entry, now time.Time) {
	own := combine.Claims(&e.rules.Spec)
	if concerned := s.claims.Set(e, own, own); len(concerned) > 0 || combine.Contestable(&e.rules.Spec) {
		s.markMoved(e, concerned, now)
		s.mark(e.name, false, now)
	}
}

// understand ends the refusal of a Service's newest state. If there was no other, it is not
// known what the kernel has of the Service. The caller holds mu.
func (s *Store) understand(e *entry, now time.Time) {
	if e.refused != "" && e.rules == nil {
		s.markFull(now)
	}
	e.refused = ""
	delete(s.foreign, e.name)
}

// drop ends a Service. The caller holds mu.
func (s *Store) drop(e *entry, now time.Time) {
	delete(s.services, e.name)
	delete(s.held, e.name)
	s.understand(e, now)
	s.renew(e.name, now)
	s.noteChange(e.name, e.rules, nil)
	if e.rules != nil {
		s.markMoved(e, s.claims.Set(e, combine.Claims(&e.rules.Spec), nil), now)
	}
	s.mark(e.name, true, now)
}

// setInventory takes the NodeProxy's status; nil when there is no NodeProxy.
func (s *Store) setInventory(status *v1alpha1.Inventory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxyListed = true
	s.inventory.want(status)
	s.reconcile(s.clock.Now())
}

// reconcile compares list and inventory after an event of either kind, and
// ends the held Services that the inventory does not hold either. Only sets
// from after a Service has vanished can tell. The caller holds mu.
func (s *Store) reconcile(now time.Time) {
	if !s.inventory.listed {
		return
	}
	number, agreed := s.inventory.agrees(now)
	if !agreed {
		if s.unconfirmedSince.IsZero() {
			s.unconfirmedSince = now
		}
		return
	}
	s.unconfirmedSince = time.Time{}
	for _, e := range s.held {
		if e.vanishedIn <= number {
			s.drop(e, now)
		}
	}
	if !s.confirmed {
		s.confirmed = true
		s.markFull(now)
	}
}

// noteVersion notes the version of a ServiceProxyRules. Even one without other
// news is to be reported as applied. The caller holds mu.
func (s *Store) noteVersion(version string) {
	if newest := newerVersion(s.newestVersion, version); newest != s.newestVersion {
		s.newestVersion, s.pending = newest, true
	}
}

// TakePending reports whether something has come since it was last called that a
// sync has to bring to the kernel or into the status. What has not, such as a
// NodeProxy that counts what it counted before, must not make the loop run:
// the next change would have to wait for the minimum interval after that.
func (s *Store) TakePending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.pending
	s.pending = false
	return news
}

// mark makes a Service dirty. The caller holds mu.
func (s *Store) mark(name dataplane.ServiceName, force bool, now time.Time) {
	s.dirty[name] = s.dirty[name] || force
	s.pend(now)
}

// markMoved makes those dirty that a change of a Service's claims concerns. The caller holds mu.
func (s *Store) markMoved(e *entry, concerned []*entry, now time.Time) {
	for _, o := range concerned {
		s.mark(o.name, false, now)
	}
	s.noteMoved(e, concerned)
}

// markFull asks for a full pass of every family, which tries what is refused, too.
// The caller holds mu.
func (s *Store) markFull(now time.Time) {
	for _, f := range s.families {
		f.full = true
		f.tryAll = true
	}
	s.pend(now)
}

// pend notes that something waits to be applied. The caller holds mu.
func (s *Store) pend(now time.Time) {
	s.pending = true
	for _, f := range s.families {
		if f.pendingSince.IsZero() {
			f.pendingSince = now
		}
	}
}

// Refresh asks for a full pass.
func (s *Store) Refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.markFull(s.clock.Now())
}
