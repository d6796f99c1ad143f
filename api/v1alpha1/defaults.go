package v1alpha1

// CompleteSettings returns s with every absent field set to its documented default, which is a
// marker at the field. The result shares no memory with s. Defaults never change within an API
// version, because settingsRevision is a hash of the differences from them.
func CompleteSettings(s *ProxySettings) *ProxySettings {
	rules := &NodeProxyRules{} // defaulter-gen writes functions for kinds only
	out := &rules.Spec.Settings
	if s != nil {
		s.DeepCopyInto(out)
	}
	setDefault(&out.DetectLocal, DetectLocalSettings{Mode: DetectLocalNone}) // as a whole
	setDefault(&out.NodePorts, NodePortSettings{})
	setDefault(&out.Masquerade, MasqueradeSettings{})
	setDefault(&out.IPVS, IPVSSettings{})
	setDefault(&out.Userspace, UserspaceSettings{})
	setDefault(&out.Sync, SyncSettings{})
	setDefault(&out.Conntrack, ConntrackSettings{})
	SetObjectDefaults_NodeProxyRules(rules)
	settings := *out // so that rules can be freed
	return &settings
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
