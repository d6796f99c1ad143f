package v1alpha1

// FormatVersions returns the versions of rendered objects that this release knows, in order:
// its controller can write and its agent understands each of them.
func FormatVersions() []int32 {
	versions := make([]int32, 0, FormatVersion)
	for v := int32(1); v <= FormatVersion; v++ {
		versions = append(versions, v)
	}
	return versions
}

// KnownFormats returns the versions of rendered objects that the reporting agent understands.
// A report without versions is from an agent that knows only the first.
func (r *AgentReport) KnownFormats() []int32 {
	if len(r.FormatVersions) == 0 {
		return []int32{1}
	}
	return r.FormatVersions
}
