package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// restoreDelay is how long the API may take to answer after the start until
	// the last good set is used.
	restoreDelay = 5 * time.Second
	// restoreTick is how often it is looked again whether it has to be used,
	// restoreRetry how often that is tried again where it cannot be.
	restoreTick  = time.Second
	restoreRetry = 10 * time.Second
)

// goodSet is a last good set that can be used here.
type goodSet struct {
	*checkpoint.Set
	// rebooted: the rules in the kernel went since it was written, and this
	// node's pods have other addresses. The set is without them.
	rebooted bool
	// why it is used, for people.
	why string
}

// restored is what is in force of a last good set.
type restored struct {
	// services: no list of ServiceProxyRules has come; rules: no own object.
	services, rules bool
	rebooted        bool
	written         time.Time
	why             string
}

// active reports whether something of the last good set stands in for what the
// API has not shown yet.
func (r restored) active() bool { return r.services || r.rules }

// stale reports whether the rules, though programmed, are not known to be those
// of today: after a reboot, until the API answers.
func (r restored) stale() bool { return r.active() && r.rebooted }

// restore takes what the API has not shown yet from the last good set. It
// reports whether there was something to take.
func (s *store) restore(g *goodSet) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.lacksSome() {
		return false, nil
	}
	now := s.clock.Now()
	if s.current == nil {
		if r := accept(g.Rules, s.formats); r != nil {
			return false, errors.New("its NodeProxyRules cannot be used: " + r.message)
		}
	}
	s.restored = restored{rebooted: g.rebooted, written: g.Written, why: g.why}
	if !s.inventory.listed {
		s.restored.services = true
		s.restoreServices(g, now)
	}
	if s.current == nil {
		s.restored.rules = true
		s.adoptRules(g.Rules, now)
	}
	s.pend(now)
	return true, nil
}

// lacking reports whether the API has not shown all that is needed, and nothing
// stands in for it.
func (s *store) lacking() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lacksSome()
}

// lacksSome is lacking for a caller that holds mu. An own object that is
// refused is no lack: what it asks is not what was asked before.
func (s *store) lacksSome() bool {
	if s.refusal != nil || s.removal.wanted {
		return false
	}
	return s.current == nil || !s.inventory.listed && !s.restored.services
}

// restoreServices takes the Services of a last good set as if they had been
// listed. A list that comes later holds those that it lacks. The caller holds
// mu.
func (s *store) restoreServices(g *goodSet, now time.Time) {
	for _, object := range g.Services {
		if name, ok := combine.ServiceOf(object.Name); !ok || s.services[name] != nil || !s.formats.know(object.Spec.FormatVersion) {
			continue
		}
		s.take(object, claimChange{}, now)
		if name, _ := combine.ServiceOf(object.Name); s.services[name] != nil && !g.rebooted {
			s.old[name] = struct{}{}
		}
	}
}

// renew notes that the API has shown a Service, or that it has ended: the kernel
// may have been kept as it was, and is compared to what is wanted now. The
// caller holds mu.
func (s *store) renew(name dataplane.ServiceName, now time.Time) {
	if _, old := s.old[name]; old {
		delete(s.old, name)
		s.markFull(now)
	}
}

// listArrived ends the use of Services of the last good set, but for those that
// are held. The caller holds mu.
func (s *store) listArrived(now time.Time) {
	if s.restored.services {
		s.restored.services = false
		s.markFull(now) // flows were not compared to anything
	}
}

// keep names the Services that may be newer in the kernel; nil: none. The caller
// holds mu.
func (s *store) keep() map[dataplane.ServiceName]struct{} {
	if len(s.old) == 0 {
		return nil
	}
	return maps.Clone(s.old) // s.old changes while the data planes read
}

// eligible reports whether load balancers may send new connections to the node,
// by what is known of the Node. The caller holds mu.
func (s *store) eligible() bool {
	if s.rules != nil {
		return !s.rules.Spec.Node.Draining
	}
	return s.restored.rules && !s.current.Spec.Node.Draining
}

// goodSet returns what is known complete, to be kept on disk; nil while the API
// has not shown it, or shows what this agent does not accept. Objects that are
// held are in it.
func (s *store) goodSet() *checkpoint.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inventory.listed || s.current == nil || s.whyNot() != nil || s.removal.wanted || s.restored.active() {
		return nil
	}
	own := &v1alpha1.NodeProxyRules{ObjectMeta: s.current.ObjectMeta, Spec: s.current.Spec}
	set := &checkpoint.Set{Header: checkpoint.Header{Written: s.clock.Now()}, Rules: own}
	set.Services = make([]*v1alpha1.ServiceProxyRules, 0, len(s.services))
	for _, e := range s.services {
		if e.rules != nil {
			set.Services = append(set.Services, e.rules)
		}
	}
	return set
}

// restoredMessage says that the node runs from the last good set; empty where it
// does not. It holds no age, which would have the status written time and again.
func (s *snapshot) restoredMessage() string {
	if !s.restored.active() {
		return ""
	}
	var what []string
	if s.restored.services {
		what = append(what, "the ServiceProxyRules")
	}
	if s.restored.rules {
		what = append(what, "the NodeProxyRules of this node")
	}
	how := "what is missing in the kernel is repaired, nothing is changed or removed"
	if s.restored.rebooted {
		how = "the node has restarted since, so endpoints on this node are left out and health checks answer 503"
	}
	return fmt.Sprintf("%s could not be read from the API since the agent started (%s): the node runs from the last good set on its disk, written %s: %s, until the API answers",
		strings.Join(what, " and "), wording.Clip(s.restored.why, wording.MaxExample), s.restored.written.UTC().Format(time.RFC3339), how)
}

// restoreLoop uses the last good set when the API has not shown everything some
// time after the start, for whatever reason. It ends when nothing is lacking.
func (a *Agent) restoreLoop(ctx context.Context) {
	if a.keeper == nil {
		return
	}
	wait, said := restoreDelay, ""
	for {
		if !pause.For(ctx, a.options.Clock, wait) {
			return
		}
		wait = restoreTick
		if !a.store.lacking() {
			if a.store.ready() {
				return
			}
			continue // refused, or to be removed: that may end
		}
		problem := a.restore()
		if problem != "" {
			wait = restoreRetry // its file system may be mounted late
		}
		if problem != said {
			said = problem
			if problem != "" {
				a.log.Info("The API has not answered, and there is no last good set on this node's disk to go by: the rules in the kernel stay as they are, unrepaired, until it answers", "file", a.keeper.file.Path(), "problem", problem)
			}
		}
	}
}

// restore puts the last good set in force. It returns what is wrong with it.
func (a *Agent) restore() string {
	g, err := a.keeper.load()
	if err != nil {
		return err.Error()
	}
	g.why = a.whyRestored()
	used, err := a.store.restore(g)
	if err != nil {
		return err.Error()
	}
	if !used { // it has come meanwhile
		return ""
	}
	a.log.Info("The API has not answered since the agent started: going by the last good set on this node's disk until it does. In the same boot only what the kernel lacks is added; after a reboot the endpoints on this node are left out and health checks answer 503",
		"file", a.keeper.file.Path(), "written", g.Written.UTC().Format(time.RFC3339), "age", g.Age(a.options.Clock.Now()).Round(time.Second),
		"services", len(g.Services), "rebooted", g.rebooted, "why", g.why)
	a.changed()
	return ""
}

// whyRestored says what the API has not shown, or why not.
func (a *Agent) whyRestored() string {
	if why := a.errors.First(); why != "" {
		return why
	}
	if _, _, gone := a.store.object(); gone {
		return "this node has no NodeProxyRules"
	}
	return fmt.Sprintf("no answer within %s", restoreDelay)
}

// noteRestored says when the API has shown what the last good set stood in for.
func (a *Agent) noteRestored() {
	if a.keeper == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// Not before the lock: see noteObject.
	r := a.store.inUse()
	a.keeper.metrics.used(r)
	ended := a.wasRestored && !r.active()
	a.wasRestored = r.active()
	if ended {
		a.log.Info("The API has answered: the last good set on disk is not used any more")
	}
}

func (s *store) inUse() restored {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restored
}

// lackedBy returns the last good set if a first list does not hold the same
// names, so that what it lacks is held. It is nil where there is none.
func (s *store) lackedBy(list []*v1alpha1.ServiceProxyRules) *goodSet {
	s.mu.Lock()
	first := !s.inventory.listed && !s.restored.services && !s.removal.wanted
	s.mu.Unlock()
	if !first || s.former == nil {
		return nil
	}
	var hash uint64
	names := 0
	for _, object := range list {
		if !object.Spec.Released {
			names++
			hash += v1alpha1.NameHash(object.Name)
		}
	}
	return s.former(names, hash)
}

// sorted puts the Services of a set in order, so that the same set is the same
// file.
func sorted(set *checkpoint.Set) *checkpoint.Set {
	slices.SortFunc(set.Services, func(a, b *v1alpha1.ServiceProxyRules) int { return strings.Compare(a.Name, b.Name) })
	return set
}
