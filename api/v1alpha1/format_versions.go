package v1alpha1

// FormatVersions returns the versions of the rendered objects that this release
// knows, in order: its controller can write each, and its agent understands each.
func FormatVersions() []int32 {
	versions := make([]int32, 0, FormatVersion)
	for v := int32(1); v <= FormatVersion; v++ {
		versions = append(versions, v)
	}
	return versions
}

// KnownFormats returns the versions of rendered objects that the reporting agent
// understands. One that names none is from before agents did, and knows the first alone.
func (r *AgentReport) KnownFormats() []int32 {
	if len(r.FormatVersions) == 0 {
		return []int32{1}
	}
	return r.FormatVersions
}
