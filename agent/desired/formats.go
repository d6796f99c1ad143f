package desired

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Formats are the versions of rendered objects that an agent understands, in
// order.
type Formats []int32

// formatsOf puts versions in order; none stands for those of this release.
func formatsOf(versions []int32) Formats {
	if len(versions) == 0 {
		return v1alpha1.FormatVersions()
	}
	return slices.Compact(slices.Sorted(slices.Values(versions)))
}

func (f Formats) know(version int32) bool { return slices.Contains(f, version) }

// unknown says that a version is not known, and what to do.
func (f Formats) unknown(version int32) string {
	known := make([]string, 0, len(f))
	for _, v := range f {
		known = append(known, fmt.Sprint(v))
	}
	return fmt.Sprintf("spec.formatVersion %d is not known to this agent, which knows %s: upgrade the agents", version, strings.Join(known, ", "))
}
