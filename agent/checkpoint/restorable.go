package checkpoint

import (
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Restorable is a Set as it can be used here and now.
type Restorable struct {
	*Set
	// Rebooted: the rules in the kernel are gone since it was written, and this
	// node's pods have other addresses. The Set is without its local endpoints.
	Rebooted bool
	// Why it is used, human-readable.
	Why string
}

// Sort puts the Services in order, so that the same Set is the same file.
func (s *Set) Sort() {
	slices.SortFunc(s.Services, func(a, b *v1alpha1.ServiceProxyRules) int { return strings.Compare(a.Name, b.Name) })
}
