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

// catalog has the Services and what they claim. It notes in the ledger what it changes.
type catalog struct {
	inventory *inventory
	ledger    *ledger
	formats   Formats
	report    func(service dataplane.ServiceName, problem string)
	services  map[dataplane.ServiceName]*entry
	retained  map[dataplane.ServiceName]*entry // those of services that are not live
	invalid   map[dataplane.ServiceName]*entry // those whose newest state is not used
	misnamed  map[string]struct{}              // names of objects that belong to no Service
	// older are the Services that the API has not delivered, whose rules in the kernel may be
	// newer than those of the checkpoint.
	older  map[dataplane.ServiceName]struct{}
	claims combine.Registry[*entry]
	// newestVersion is the newest resourceVersion of a ServiceProxyRules.
	newestVersion string
}

func newCatalog(l *ledger, f Formats, report func(dataplane.ServiceName, string)) *catalog {
	c := &catalog{
		inventory: newInventory(),
		ledger:    l, formats: f, report: report,
		services: map[dataplane.ServiceName]*entry{},
		retained: map[dataplane.ServiceName]*entry{},
		invalid:  map[dataplane.ServiceName]*entry{},
		misnamed: map[string]struct{}{},
		older:    map[dataplane.ServiceName]struct{}{},
		claims:   combine.Registry[*entry]{},
	}
	c.inventory.doubt(l.clock.Now())
	return c
}

// combine returns a Service as a family of the node serves it, and what cannot be used of it; nil:
// it has no rules, or none of the family.
func (c *catalog) combine(e *entry, family dataplane.Family, node combine.Node, local *v1alpha1.ServiceLocalEndpoints) (*dataplane.Service, []string) {
	if e == nil || e.rules == nil {
		return nil, nil
	}
	in := combine.Input{
		Name:       e.name,
		Rules:      &e.rules.Spec,
		Node:       node,
		Family:     family,
		Lost:       func(claim combine.Claim) bool { return c.claims.Lost(e, claim) },
		Precedence: e.precedence(),
	}
	if local != nil {
		in.LocalEndpoints = local.Ports
	}
	return combine.Service(in)
}

// claimChange is what two states of a Service claim; a nil former means none. The zero
// value means no object.
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

// claimChangeTo is newClaimChange for an object that may change nothing, or not be used.
func claimChangeTo(former, object *v1alpha1.ServiceProxyRules) claimChange {
	if _, excess := v1alpha1.SizeOf(&object.Spec).Excess(); excess != "" || object.Spec.Released ||
		former != nil && combine.SameClaims(&former.Spec, &object.Spec) {
		return claimChange{}
	}
	return newClaimChange(former, object)
}

// SetServices takes a new, complete list. What was there and is not in it has vanished.
func (s *Store) SetServices(list []*v1alpha1.ServiceProxyRules) {
	lacked := s.lackedBy(list) // reads a file
	s.mu.Lock()
	defer s.mu.Unlock()
	if lacked != nil {
		s.catalog.restore(lacked)
	}
	s.catalog.setAll(list, !s.removal.Requested)
	if s.restored.Services {
		s.restored.Services = false // except for those that are retained
		s.ledger.markFull()         // flows were not compared with anything
	}
}

// SetService takes a new or changed object.
func (s *Store) SetService(object *v1alpha1.ServiceProxyRules) {
	s.mu.Lock()
	former := s.catalog.rulesOf(object.Name)
	s.mu.Unlock()
	claims := claimChangeTo(former, object) // long for a Service at the limits; others need the store meanwhile
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalog.set(object, claims)
}

// DeleteService takes the last state of a deleted object: if it is released, the Service has
// ended; otherwise its rules are retained.
func (s *Store) DeleteService(object *v1alpha1.ServiceProxyRules) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalog.remove(object, !s.removal.Requested)
}

// setAll takes a new, complete list.
func (c *catalog) setAll(list []*v1alpha1.ServiceProxyRules, retain bool) {
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
	for name := range c.inventory.names {
		if _, found := present[name]; !found {
			remove = append(remove, name)
		}
	}
	maps.DeleteFunc(c.misnamed, func(name string, _ struct{}) bool { _, found := present[name]; return !found })
	number := c.inventory.change(c.ledger.clock.Now(), add, remove)
	for _, e := range c.services {
		if _, found := present[v1alpha1.ServiceProxyRulesName(e.name.Namespace, e.name.Name)]; !found && e.live {
			c.vanish(e, number, retain)
		}
	}
	for _, object := range list {
		c.take(object, claimChange{})
	}
	if !c.inventory.listed {
		c.inventory.listed, c.ledger.pendingSync = true, true // even if it is empty
	}
	c.reconcile()
}

// set takes a new or changed object.
func (c *catalog) set(object *v1alpha1.ServiceProxyRules, claims claimChange) {
	now, names := c.ledger.clock.Now(), []string{object.Name}
	if object.Spec.Released {
		c.inventory.change(now, nil, names)
	} else {
		c.inventory.change(now, names, nil)
	}
	c.take(object, claims)
	c.reconcile()
}

// remove takes the last state of a deleted object.
func (c *catalog) remove(object *v1alpha1.ServiceProxyRules, retain bool) {
	number := c.inventory.change(c.ledger.clock.Now(), nil, []string{object.Name})
	c.noteVersion(object.ResourceVersion)
	delete(c.misnamed, object.Name)
	name, _ := combine.ServiceOf(object.Name)
	if e := c.services[name]; e != nil {
		if object.Spec.Released && c.formats.know(object.Spec.FormatVersion) {
			c.drop(e)
		} else if e.live {
			c.vanish(e, number, retain)
		}
	}
	c.reconcile()
}

// rulesOf returns the newest state of an object that is used; nil: there is none.
func (c *catalog) rulesOf(object string) *v1alpha1.ServiceProxyRules {
	name, _ := combine.ServiceOf(object)
	if e := c.services[name]; e != nil {
		return e.rules
	}
	return nil
}

// take stores the state of an existing object, whose claims may be listed already.
func (c *catalog) take(object *v1alpha1.ServiceProxyRules, claims claimChange) {
	c.noteVersion(object.ResourceVersion)
	name, ok := combine.ServiceOf(object.Name)
	if !ok {
		if _, reported := c.misnamed[object.Name]; !reported {
			c.misnamed[object.Name] = struct{}{}
			c.report(name, fmt.Sprintf("ServiceProxyRules %q is not named <namespace>.<service>; it is ignored, the controller renders none like it", object.Name))
		}
		return
	}
	e := c.services[name]
	if object.Spec.Released && c.formats.know(object.Spec.FormatVersion) {
		if e == nil { // what an earlier run of the agent has programmed
			c.ledger.mark(name, true)
		} else {
			c.drop(e)
		}
		return
	}
	if e == nil {
		e = &entry{name: name}
		c.services[name] = e
	}
	returned := !e.live
	e.live = true
	delete(c.retained, name)
	invalid := ""
	if !c.formats.know(object.Spec.FormatVersion) {
		invalid = c.formats.unknown(object.Spec.FormatVersion)
	} else if _, invalid = v1alpha1.SizeOf(&object.Spec).Excess(); invalid != "" { // before anything is expanded
		c.shown(name)
	}
	if invalid != "" {
		e.invalid = invalid + "; its rules stay as they are"
		c.invalid[name] = e
		if returned && e.rules != nil {
			c.reclaim(e)
		}
		return
	}
	c.understand(e)
	if e.rules != nil && e.rules.UID == object.UID && e.rules.Generation == object.Generation && object.Generation != 0 && !returned {
		e.rules = object
		return
	}
	c.adopt(e, object, claims, returned)
}

// adopt makes object the desired state.
func (c *catalog) adopt(e *entry, object *v1alpha1.ServiceProxyRules, claims claimChange, returned bool) {
	c.shown(e.name)
	former := e.rules
	e.rules = object
	c.ledger.noteChange(e.name, former, object)
	if former == nil || returned || !combine.SameClaims(&former.Spec, &object.Spec) {
		if claims.object != object || claims.former != former {
			claims = newClaimChange(former, object)
		}
		c.ledger.markMoved(e, c.claims.Set(e, claims.before, claims.after))
	}
	c.ledger.mark(e.name, false)
}

// vanish begins to retain a Service, or ends it.
func (c *catalog) vanish(e *entry, number uint64, retain bool) {
	e.live = false
	e.vanishedIn, e.vanishedAt = number, c.ledger.clock.Now()
	if !retain { // the rules are to be removed
		c.drop(e)
		return
	}
	c.retained[e.name] = e
	if e.rules == nil {
		return // what the kernel has of it is unknown: until it has ended nothing is pruned
	}
	c.understand(e)
	c.reclaim(e)
}

// reclaim claims again what a Service claims, after it has vanished or returned: the precedence
// of its claims has changed.
func (c *catalog) reclaim(e *entry) {
	own := combine.Claims(&e.rules.Spec)
	if concerned := c.claims.Set(e, own, own); len(concerned) > 0 || combine.Contestable(&e.rules.Spec) {
		c.ledger.markMoved(e, concerned)
		c.ledger.mark(e.name, false)
	}
}

// understand notes that a Service's newest state is used. If there was no other, what the
// kernel has of the Service is unknown.
func (c *catalog) understand(e *entry) {
	if e.invalid != "" && e.rules == nil {
		c.ledger.markFull()
	}
	e.invalid = ""
	delete(c.invalid, e.name)
}

// drop ends a Service.
func (c *catalog) drop(e *entry) {
	delete(c.services, e.name)
	delete(c.retained, e.name)
	c.understand(e)
	c.shown(e.name)
	c.ledger.noteChange(e.name, e.rules, nil)
	if e.rules != nil {
		c.ledger.markMoved(e, c.claims.Set(e, combine.Claims(&e.rules.Spec), nil))
	}
	c.ledger.mark(e.name, true)
}

// dropAll ends all Services.
func (c *catalog) dropAll() {
	for _, e := range c.services {
		c.drop(e)
	}
}

// dropRetained ends the retained Services that a set of the list lacked.
func (c *catalog) dropRetained(number uint64) {
	for _, e := range c.retained {
		if e.vanishedIn <= number {
			c.drop(e)
		}
	}
}

// noteVersion notes the version of a ServiceProxyRules, which is reported as applied even if
// nothing else has changed.
func (c *catalog) noteVersion(version string) {
	if CompareVersions(c.newestVersion, version) < 0 {
		c.newestVersion, c.ledger.pendingSync = version, true
	}
}

// reportProblems reports the entries of a Service that cannot be used, once.
func (c *catalog) reportProblems(e *entry, problems []string) {
	if e == nil {
		return
	}
	slices.Sort(problems)
	text := strings.Join(slices.Compact(problems), "; ")
	if text != e.problems && text != "" {
		c.report(e.name, text)
	}
	e.problems = text
}

// CompareVersions compares two resource versions, which are decimal numbers of any length. What is
// no such number is lower than any.
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
