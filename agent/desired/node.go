package desired

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ownObject is the node's own NodeProxyRules.
type ownObject struct {
	// rules is the object as last seen, existing or not; current is the last one that was
	// accepted, rejection why the newest is not.
	rules          *v1alpha1.NodeProxyRules
	exists, listed bool
	current        *v1alpha1.NodeProxyRules
	rejection      *Rejection
	settings       *Settings // of current
	// nodes are what the data planes need to know of current.
	nodes          map[dataplane.Family]dataplane.Node
	localEndpoints map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints
	// overLimit are the namespaces whose newest local endpoints are not used, sorted.
	overLimit []string
	// conflictFound: the stored status, as first seen, records another active proxy.
	conflictFound bool
}

// audit reports whether enforcement is Audit.
func (o *ownObject) audit() bool { return o.settings != nil && o.settings.Audit }

// warnings reports the namespaces over a limit.
func (o *ownObject) warnings() []string {
	if len(o.overLimit) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("the local endpoints of %s, such as %q, exceed the limit of %d bytes for one or %d for all: the previous ones are used",
		text.Count(len(o.overLimit), "namespace"), o.overLimit[0], v1alpha1.MaxNamespaceLocalBytes, v1alpha1.MaxNodeLocalBytes)}
}

// Settings are complete settings, with the values that the agent itself uses.
type Settings struct {
	*v1alpha1.ProxySettings
	Audit bool // enforcement is Audit
	// MinInterval is the least pause between syncs, VerifyInterval that between
	// verifications.
	MinInterval, VerifyInterval time.Duration
}

// NewSettings completes settings, which may be nil.
func NewSettings(s *v1alpha1.ProxySettings) *Settings {
	s = v1alpha1.CompleteSettings(s)
	return &Settings{
		ProxySettings: s, Audit: *s.Enforcement == v1alpha1.Audit,
		MinInterval:    time.Duration(*s.Sync.MinIntervalMilliseconds) * time.Millisecond,
		VerifyInterval: time.Duration(*s.Sync.VerifyIntervalSeconds) * time.Second,
	}
}

// SetRules takes the own NodeProxyRules. If it is not accepted, the last accepted one stays
// applied.
func (s *Store) SetRules(object *v1alpha1.NodeProxyRules) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.own.rules
	if known == nil {
		s.own.conflictFound = meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionConflictingProxy)
		if !s.own.conflictFound {
			s.actual.ran = object.Status.Mode.Kernel()
		}
		s.removal.remember(object)
	}
	s.own.rules, s.own.exists, s.own.listed = object, true, true
	if known != nil && known.UID == object.UID && known.Generation == object.Generation && object.Generation != 0 {
		return // only its status or metadata has changed
	}
	former := s.own.rejection
	s.own.rejection = accept(object, s.Formats)
	if s.own.rejection != nil {
		return
	}
	if former != nil { // others may have written to the kernel meanwhile
		s.ledger.markFull()
	}
	s.restored.Rules = false
	s.adoptRules(object)
}

// MissRules notes that the own NodeProxyRules does not exist: everything stays.
func (s *Store) MissRules() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own.exists, s.own.listed = false, true
}

// OwnObject returns the applied settings, why the newest state of the own object is not
// accepted, and whether the object is gone.
func (s *Store) OwnObject() (settings *Settings, r *Rejection, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own.settings, s.own.rejection, s.own.listed && !s.own.exists
}

// Auditing reports whether enforcement is Audit.
func (s *Store) Auditing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own.audit()
}

// FoundConflict reports whether the stored status, as first seen, records another active
// proxy.
func (s *Store) FoundConflict() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own.conflictFound
}

// adoptRules applies an accepted object and marks what it changes. The caller holds mu.
func (s *Store) adoptRules(object *v1alpha1.NodeProxyRules) {
	former, audit := s.own.current, s.own.audit()
	s.own.current = object
	s.ledger.pendingSync = true // its generation, if nothing else
	first := former == nil
	if first || !equality.Semantic.DeepEqual(former.Spec.Settings, object.Spec.Settings) {
		s.own.settings = NewSettings(&object.Spec.Settings)
		s.ledger.markFull()
	}
	s.own.nodes = map[dataplane.Family]dataplane.Node{}
	for family := range s.families {
		s.own.nodes[family] = combine.Facts(&object.Spec.Node, s.own.settings.ProxySettings, family)
	}
	if audit != s.own.audit() {
		// The outcome of a comparison proves nothing about what we write, and vice versa, so neither
		// may count as the other until ownership begins or ends.
		s.forgetKernel()
	}
	if first || !slices.Equal(former.Spec.Node.Addresses, object.Spec.Node.Addresses) ||
		!slices.Equal(former.Spec.Node.PodCIDRs, object.Spec.Node.PodCIDRs) {
		s.ledger.markFull()
	}
	if first || former.Spec.Node.Zone != object.Spec.Node.Zone {
		for name := range s.catalog.services {
			s.ledger.mark(name, false)
		}
	}
	if first || former.Spec.SettingsRevision != object.Spec.SettingsRevision {
		s.ledger.pend() // to be reported once a pass was made
	}
	for _, name := range s.own.adoptLocalEndpoints(object.Spec.LocalEndpoints) {
		s.ledger.metrics.endpoint(name)
		s.ledger.mark(name, false)
	}
}

// adoptLocalEndpoints returns whose local endpoints have changed. Namespaces over a limit retain theirs.
func (o *ownObject) adoptLocalEndpoints(list []v1alpha1.ServiceLocalEndpoints) (changed []dataplane.ServiceName) {
	former := o.localEndpoints
	local, over := combine.LocalEndpoints(list)
	for name, endpoints := range former {
		if over.Has(name.Namespace) {
			local[name] = endpoints
		}
	}
	o.localEndpoints, o.overLimit = local, sets.List(over)
	for name, endpoints := range local {
		if !sameLocalEndpoints(former[name], endpoints) {
			changed = append(changed, name)
		}
	}
	for name := range former {
		if local[name] == nil {
			changed = append(changed, name)
		}
	}
	return changed
}

func sameLocalEndpoints(a, b *v1alpha1.ServiceLocalEndpoints) bool {
	return a != nil && b != nil && slices.EqualFunc(a.Ports, b.Ports, func(x, y v1alpha1.PortLocalEndpoints) bool {
		return x.Name == y.Name && x.Protocol == y.Protocol && slices.Equal(x.Endpoints, y.Endpoints)
	})
}
