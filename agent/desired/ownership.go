package desired

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// formerConflict reports whether the stored status, as this agent first saw it,
// says that another proxy was active.
func formerConflict(object *v1alpha1.NodeProxyRules) bool {
	return meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionConflictingProxy)
}

// Auditing reports whether enforcement is Audit.
func (s *Store) Auditing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inAudit()
}

// inAudit is auditing. The caller holds mu.
func (s *Store) inAudit() bool {
	return s.settings != nil && *s.settings.Enforcement == v1alpha1.Audit
}

// FoundConflict reports whether the stored status, as it was first seen, says
// that another proxy was active.
func (s *Store) FoundConflict() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflictFound
}

// Forget drops what is known of the kernel: somebody else writes from now on,
// or has written.
func (s *Store) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetKernel(s.clock.Now())
}

// forgetKernel is forget. The caller holds mu.
func (s *Store) forgetKernel(now time.Time) {
	s.complete = false
	s.epoch++
	for _, f := range s.families {
		f.done, f.err, f.absent, f.retry = false, nil, nil, false
		f.rejected, f.warnings, f.notes, f.retiring, f.kernel, f.difference = nil, nil, nil, "", nil, nil
		f.applyingSince, f.audit = time.Time{}, auditor{}
	}
	s.waitAnew(now)
	s.markFull(now)
}
