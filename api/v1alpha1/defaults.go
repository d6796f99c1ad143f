package v1alpha1

// CompleteSettings returns s with every absent field set to its documented default. The result
// shares no memory with s. Defaults never change within an API version, because settingsRevision
// is a hash of the differences from them.
func CompleteSettings(s *ProxySettings) *ProxySettings {
	out := &ProxySettings{}
	if s != nil {
		s.DeepCopyInto(out)
	}
	setDefault(&out.Mode, ModeIPTables)
	setDefault(&out.Fallback, FallbackNone)
	setDefault(&out.Enforcement, Enforce)
	setDefault(&out.DetectLocal, DetectLocalSettings{Mode: DetectLocalNone})
	setDefault(&out.NodePorts, NodePortSettings{})
	setDefault(&out.NodePorts.AddressMode, NodePortsAll)
	setDefault(&out.NodePorts.Localhost, Enabled)
	setDefault(&out.Masquerade, MasqueradeSettings{})
	setDefault(&out.Masquerade.All, Disabled)
	setDefault(&out.Masquerade.Bit, 14)
	setDefault(&out.IPVS, IPVSSettings{})
	setDefault(&out.IPVS.Scheduler, "rr")
	setDefault(&out.IPVS.StrictARP, Disabled)
	setDefault(&out.IPVS.TCPTimeoutSeconds, 0)
	setDefault(&out.IPVS.TCPFinTimeoutSeconds, 0)
	setDefault(&out.IPVS.UDPTimeoutSeconds, 0)
	setDefault(&out.Sync, SyncSettings{})
	setDefault(&out.Sync.MinIntervalMilliseconds, 250)
	setDefault(&out.Sync.VerifyIntervalSeconds, 60)
	setDefault(&out.Conntrack, ConntrackSettings{})
	setDefault(&out.Conntrack.MaxPerCore, 32768)
	setDefault(&out.Conntrack.Min, 131072)
	setDefault(&out.Conntrack.TCPEstablishedTimeoutSeconds, 86400)
	setDefault(&out.Conntrack.TCPCloseWaitTimeoutSeconds, 3600)
	setDefault(&out.Conntrack.UDPTimeoutSeconds, 0)
	setDefault(&out.Conntrack.UDPStreamTimeoutSeconds, 0)
	setDefault(&out.Conntrack.TCPBeLiberal, Disabled)
	return out
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
