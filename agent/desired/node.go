package desired

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ownObject is the node's own NodeProxyRules.
type ownObject struct {
	// rules is the object as last seen, existing or not; current is the last one that was
	// accepted, refusal why the newest is not.
	rules          *v1alpha1.NodeProxyRules
	exists, listed bool
	current        *v1alpha1.NodeProxyRules
	refusal        *Refusal
	settings       *Settings // of current
	// nodes are what the data planes need to know of current.
	nodes          map[dataplane.Family]dataplane.Node
	localEndpoints map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints
	// conflictFound: the stored status, as first seen, records another active proxy.
	conflictFound bool
}

// audit reports whether enforcement is Audit.
func (o *ownObject) audit() bool { return o.settings != nil && o.settings.Audit }

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
			s.actual.ran = object.Status.Mode
		}
		s.rememberRemoval(object)
	}
	s.own.rules, s.own.exists, s.own.listed = object, true, true
	if known != nil && known.UID == object.UID && known.Generation == object.Generation && object.Generation != 0 {
		return // only its status or metadata has changed
	}
	former := s.own.refusal
	s.own.refusal = accept(object, s.Formats)
	if s.own.refusal != nil {
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
func (s *Store) OwnObject() (settings *Settings, r *Refusal, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own.settings, s.own.refusal, s.own.listed && !s.own.exists
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
	s.ledger.news = true // its generation, if nothing else
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
		// What a comparison has found says nothing of what we write, and vice versa. It must
		// not pass for that until ownership begins or ends.
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
	s.adoptLocalEndpoints(object.Spec.LocalEndpoints)
}

// adoptLocalEndpoints marks the Services whose local endpoints have changed. The caller holds
// mu.
func (s *Store) adoptLocalEndpoints(list []v1alpha1.ServiceLocalEndpoints) {
	former, local := s.own.localEndpoints, combine.Members(list)
	s.own.localEndpoints = local
	changed := func(name dataplane.ServiceName) {
		s.ledger.metrics.endpoint(name)
		s.ledger.mark(name, false)
	}
	for name, endpoints := range local {
		if !sameLocalEndpoints(former[name], endpoints) {
			changed(name)
		}
	}
	for name := range former {
		if local[name] == nil {
			changed(name)
		}
	}
}

func sameLocalEndpoints(a, b *v1alpha1.ServiceLocalEndpoints) bool {
	return a != nil && b != nil && slices.EqualFunc(a.Ports, b.Ports, func(x, y v1alpha1.PortLocalEndpoints) bool {
		return x.Name == y.Name && x.Protocol == y.Protocol && slices.Equal(x.Endpoints, y.Endpoints)
	})
}
