package desired

import (
	"iter"
	"sync"
	"sync/atomic"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Store is the desired state of the node: what the API has shown, what of it waits, and what
// the kernel has by the last Apply or comparison. Its parts have methods of their own and know no
// lock: only the Store calls them, with its own held, and joins them.
//
// The watches write to it and the sync loop reads from it. It retains the objects that it is
// given, which must not change anymore.
type Store struct {
	clock    clock.PassiveClock
	nodeName string
	Formats  Formats
	// former returns a checkpoint whose names differ from the first list; nil: there is none.
	former func(names int, hash uint64) *checkpoint.Restorable
	// lastHealth is what Health last returned. It is not changed anymore.
	lastHealth atomic.Pointer[health.State]

	mu sync.Mutex // guards everything below

	catalog  *catalog
	own      ownObject
	restored Restored
	ledger   *ledger
	removal  removal
	mode     ModeChoice
	actual   actualState
	families families
	// diskWarning is why no checkpoint can be written.
	diskWarning string
}

// some reports whether a sequence has something for which is returns true.
func some[T any](all iter.Seq[T], is func(T) bool) bool {
	for one := range all {
		if is(one) {
			return true
		}
	}
	return false
}

// actualState is what is known of the kernel besides its IP families.
type actualState struct {
	applied  Applied
	complete bool // a first complete set was applied
	// served: since the start a set was applied, or compared, all of which the API has shown.
	served bool
	// epoch counts how often what is known of the kernel was discarded.
	epoch int
	// ran is the mode that this agent ran last, maybe before the start; empty: unknown, or
	// another proxy has run since.
	ran v1alpha1.ProxyMode
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
	// Report is called once with what is wrong with entries of a Service.
	Report func(service dataplane.ServiceName, problem string)
	// Former returns a checkpoint whose names differ from the first list; nil: there
	// is none.
	Former func(names int, hash uint64) *checkpoint.Restorable
}

// New returns a Store that knows nothing yet.
func New(o Options) *Store {
	l, formats := newLedger(o.Clock, o.Families), formatsOf(o.Formats)
	s := &Store{
		clock: o.Clock, nodeName: o.NodeName, Formats: formats, former: o.Former,
		catalog: newCatalog(l, formats, o.Report), ledger: l, families: families{},
	}
	for _, family := range o.Families {
		s.families[family] = newFamilyState(s.ledger.families[family])
	}
	s.Health() // so that there is a last one
	return s
}

// TakePending reports whether a change has arrived since it was last called that a sync has to
// bring to the kernel or into the status. What has not, such as a NodeProxy that counts what
// it counted before, must not make the loop run: the next change would have to wait for the
// minimum interval after that.
func (s *Store) TakePending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	pending := s.ledger.pendingSync
	s.ledger.pendingSync = false
	return pending
}

// Refresh requests a full pass.
func (s *Store) Refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.markFull()
}

// Recheck requests an Apply of a family because facts of the node that its data plane follows
// have changed.
func (s *Store) Recheck(family dataplane.Family) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.families[family]
	f.recheck = true
	f.wait(s.clock.Now())
}

// BesideOther notes whether another proxy maintains the rules of the node. Changes do not wait
// for us meanwhile; those that remain when we take over wait from then on.
func (s *Store) BesideOther(other bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.actual.otherProxy && !other {
		s.ledger.waitAnew()
	}
	s.actual.otherProxy = other
	if other {
		s.actual.ran = "" // the rules are those of the other one
	}
}

// CurrentEpoch changes whenever what is known of the kernel is discarded; see Forget.
func (s *Store) CurrentEpoch() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.actual.epoch
}

// Forget discards what is known of the kernel: another program writes from now on, or has
// written.
func (s *Store) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetKernel()
}

// forgetKernel is Forget. The caller holds mu.
func (s *Store) forgetKernel() {
	s.actual.complete = false
	s.actual.epoch++
	s.families.forget()
	s.ledger.waitAnew()
	s.ledger.markFull()
}

// AppliedVersion is the newest resourceVersion of a ServiceProxyRules that the kernel has;
// empty before the first.
func (s *Store) AppliedVersion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.actual.applied.Version
}

// Ready reports whether there is a complete set that this agent may apply.
func (s *Store) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (s.catalog.inventory.listed || s.restored.Services) && s.own.current != nil && s.own.rejection == nil
}

// Served reports whether a complete set that the API has shown since the start was applied,
// or compared.
func (s *Store) Served() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.actual.served
}
