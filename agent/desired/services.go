package desired

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// entry is what is known of one Service.
type entry struct {
	name dataplane.ServiceName
	// rules is the newest state that this agent understands; nil: none yet. It is never
	// changed, only replaced.
	rules *v1alpha1.ServiceProxyRules
	// live: the object exists. A Service that is not live is retained.
	live bool
	// vanishedIn is the number of the first set of the list without a retained Service,
	// vanishedAt the time.
	vanishedIn uint64
	vanishedAt time.Time
	// invalid is why the newest state of the object is not used. Empty: it is.
	invalid string
	// problems are the entries that cannot be used, as last reported.
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

// catalog has the Services and what they claim.
type catalog struct {
	services map[dataplane.ServiceName]*entry
	retained map[dataplane.ServiceName]*entry // those of services that are not live
	invalid  map[dataplane.ServiceName]*entry // those whose newest state is not used
	misnamed map[string]struct{}              // names of objects that belong to no Service
	claims   combine.Registry[*entry]
	// newestVersion is the newest resourceVersion of a ServiceProxyRules.
	newestVersion string
}

func newCatalog() catalog {
	return catalog{
		services: map[dataplane.ServiceName]*entry{},
		retained: map[dataplane.ServiceName]*entry{},
		invalid:  map[dataplane.ServiceName]*entry{},
		misnamed: map[string]struct{}{},
		claims:   combine.Registry[*entry]{},
	}
}

// unknownState reports whether some Service's object was only seen in a form that this agent
// does not understand: its rules in the kernel, if any, are no leftovers.
func (c *catalog) unknownState() bool {
	for _, e := range c.invalid {
		if e.rules == nil {
			return true
		}
	}
	return false
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

// SetServices takes a new, complete list. What was there and is not in it has vanished.
func (s *Store) SetServices(list []*v1alpha1.ServiceProxyRules) {
	lacked := s.lackedBy(list) // reads a file
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if lacked != nil {
		s.restoreServices(lacked)
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
	maps.DeleteFunc(s.catalog.misnamed, func(name string, _ struct{}) bool { _, found := present[name]; return !found })
	number := s.inventory.change(now, add, remove)
	for _, e := range s.catalog.services {
		if _, found := present[v1alpha1.ServiceProxyRulesName(e.name.Namespace, e.name.Name)]; !found && e.live {
			s.vanish(e, number)
		}
	}
	for _, object := range list {
		s.take(object, claimChange{})
	}
	if !s.inventory.listed {
		s.inventory.listed, s.ledger.news = true, true // even if it is empty
		s.listArrived()
	}
	s.reconcile(now)
}

// SetService takes a new or changed object.
func (s *Store) SetService(object *v1alpha1.ServiceProxyRules) {
	claims := s.claimChangeTo(object)
	s.mu.Lock()
	defer s.mu.Unlock()
	now, names := s.clock.Now(), []string{object.Name}
	if object.Spec.Released {
		s.inventory.change(now, nil, names)
	} else {
		s.inventory.change(now, names, nil)
	}
	s.take(object, claims)
	s.reconcile(now)
}

// claimChangeTo lists the claims that object changes. That takes long for a Service at the
// limits, and others need the store meanwhile.
func (s *Store) claimChangeTo(object *v1alpha1.ServiceProxyRules) claimChange {
	name, _ := combine.ServiceOf(object.Name)
	var former *v1alpha1.ServiceProxyRules
	s.mu.Lock()
	if e := s.catalog.services[name]; e != nil {
		former = e.rules
	}
	s.mu.Unlock()
	if _, excess := v1alpha1.SizeOf(&object.Spec).Excess(); excess != "" || object.Spec.Released ||
		former != nil && combine.SameClaims(&former.Spec, &object.Spec) {
		return claimChange{}
	}
	return newClaimChange(former, object)
}

// DeleteService takes the last state of a deleted object: if it is released, the Service has
// ended; otherwise its rules are retained.
func (s *Store) DeleteService(object *v1alpha1.ServiceProxyRules) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	number := s.inventory.change(now, nil, []string{object.Name})
	s.noteVersion(object.ResourceVersion)
	delete(s.catalog.misnamed, object.Name)
	name, _ := combine.ServiceOf(object.Name)
	if e := s.catalog.services[name]; e != nil {
		if object.Spec.Released && s.Formats.know(object.Spec.FormatVersion) {
			s.drop(e)
		} else if e.live {
			s.vanish(e, number)
		}
	}
	s.reconcile(now)
}

// take stores the state of an existing object, whose claims may be listed already. The caller
// holds mu.
func (s *Store) take(object *v1alpha1.ServiceProxyRules, claims claimChange) {
	s.noteVersion(object.ResourceVersion)
	name, ok := combine.ServiceOf(object.Name)
	if !ok {
		if _, reported := s.catalog.misnamed[object.Name]; !reported {
			s.catalog.misnamed[object.Name] = struct{}{}
			s.report(name, fmt.Sprintf("ServiceProxyRules %q is not named <namespace>.<service>; it is ignored, the controller renders none like it", object.Name))
		}
		return
	}
	e := s.catalog.services[name]
	if object.Spec.Released && s.Formats.know(object.Spec.FormatVersion) {
		if e == nil { // what an earlier run of the agent has programmed
			s.ledger.mark(name, true)
		} else {
			s.drop(e)
		}
		return
	}
	if e == nil {
		e = &entry{name: name}
		s.catalog.services[name] = e
	}
	returned := !e.live
	e.live = true
	delete(s.catalog.retained, name)
	invalid := ""
	if !s.Formats.know(object.Spec.FormatVersion) {
		invalid = s.Formats.unknown(object.Spec.FormatVersion)
	} else if _, invalid = v1alpha1.SizeOf(&object.Spec).Excess(); invalid != "" { // before anything is expanded
		s.shown(name)
	}
	if invalid != "" {
		e.invalid = invalid + "; its rules stay as they are"
		s.catalog.invalid[name] = e
		if returned && e.rules != nil {
			s.reclaim(e)
		}
		return
	}
	s.understand(e)
	if e.rules != nil && e.rules.UID == object.UID && e.rules.Generation == object.Generation && object.Generation != 0 && !returned {
		e.rules = object
		return
	}
	s.adopt(e, object, claims, returned)
}

// adopt makes object the desired state. The caller holds mu.
func (s *Store) adopt(e *entry, object *v1alpha1.ServiceProxyRules, claims claimChange, returned bool) {
	s.shown(e.name)
	former := e.rules
	e.rules = object
	s.ledger.noteChange(e.name, former, object)
	if former == nil || returned || !combine.SameClaims(&former.Spec, &object.Spec) {
		if claims.object != object || claims.former != former {
			claims = newClaimChange(former, object)
		}
		s.ledger.markMoved(e, s.catalog.claims.Set(e, claims.before, claims.after))
	}
	s.ledger.mark(e.name, false)
}

// vanish begins to retain a Service. The caller holds mu.
func (s *Store) vanish(e *entry, number uint64) {
	e.live = false
	e.vanishedIn, e.vanishedAt = number, s.clock.Now()
	if s.removal.Wanted { // there is nothing to retain
		s.drop(e)
		return
	}
	s.catalog.retained[e.name] = e
	if e.rules == nil {
		return // what the kernel has of it is unknown: until it has ended nothing is pruned
	}
	s.understand(e)
	s.reclaim(e)
}

// reclaim claims again what a Service claims, after it has vanished or returned: the precedence
// of its claims has changed. The caller holds mu.
func (s *Store) reclaim(e *entry) {
	own := combine.Claims(&e.rules.Spec)
	if concerned := s.catalog.claims.Set(e, own, own); len(concerned) > 0 || combine.Contestable(&e.rules.Spec) {
		s.ledger.markMoved(e, concerned)
		s.ledger.mark(e.name, false)
	}
}

// understand notes that a Service's newest state is used. If there was no other, what the
// kernel has of the Service is unknown. The caller holds mu.
func (s *Store) understand(e *entry) {
	if e.invalid != "" && e.rules == nil {
		s.ledger.markFull()
	}
	e.invalid = ""
	delete(s.catalog.invalid, e.name)
}

// drop ends a Service. The caller holds mu.
func (s *Store) drop(e *entry) {
	delete(s.catalog.services, e.name)
	delete(s.catalog.retained, e.name)
	s.understand(e)
	s.shown(e.name)
	s.ledger.noteChange(e.name, e.rules, nil)
	if e.rules != nil {
		s.ledger.markMoved(e, s.catalog.claims.Set(e, combine.Claims(&e.rules.Spec), nil))
	}
	s.ledger.mark(e.name, true)
}

// noteVersion notes the version of a ServiceProxyRules, which is reported as applied even if
// nothing else has changed. The caller holds mu.
func (s *Store) noteVersion(version string) {
	if newest := newerVersion(s.catalog.newestVersion, version); newest != s.catalog.newestVersion {
		s.catalog.newestVersion, s.ledger.news = newest, true
	}
}

// reportProblems reports the entries of a Service that cannot be used, once.
func (s *Store) reportProblems(e *entry, problems []string) {
	if e == nil {
		return
	}
	slices.Sort(problems)
	text := strings.Join(slices.Compact(problems), "; ")
	if text != e.problems && text != "" {
		s.report(e.name, text)
	}
	e.problems = text
}

// newerVersion returns the higher of two resource versions, which are decimal numbers of any
// length. What is no such number is lower than any.
func newerVersion(a, b string) string {
	if CompareVersions(a, b) < 0 {
		return b
	}
	return a
}

// CompareVersions compares two resource versions as numbers.
func CompareVersions(a, b string) int {
	a, b = digits(a), digits(b)
	return cmp.Or(len(a)-len(b), strings.Compare(a, b))
}

// digits strips leading zeros. It returns nothing for what is no number.
func digits(s string) string {
	if strings.Trim(s, "0123456789") != "" {
		return ""
	}
	return strings.TrimLeft(s, "0")
}
