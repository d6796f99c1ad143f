package v1alpha1

// The documented defaults of ProxySettings. They never change within an API version, because
// settingsRevision is a hash of the differences from them.
const (
	DefaultMode                         = ModeIPTables
	DefaultFallback                     = FallbackNone
	DefaultEnforcement                  = Enforce
	DefaultDetectLocalMode              = DetectLocalNone
	DefaultNodePortAddressMode          = NodePortsAll
	DefaultNodePortLocalhost            = Enabled
	DefaultMasqueradeAll                = Disabled
	DefaultMasqueradeBit          int32 = 14
	DefaultIPVSScheduler                = "rr"
	DefaultStrictARP                    = Disabled
	DefaultIPVSTimeoutSeconds     int32 = 0
	DefaultMinIntervalMillis      int32 = 250
	DefaultVerifyIntervalSeconds  int32 = 60
	DefaultConntrackMaxPerCore    int32 = 32768
	DefaultConntrackMin           int32 = 131072
	DefaultTCPEstablishedSeconds  int32 = 86400
	DefaultTCPCloseWaitSeconds    int32 = 3600
	DefaultConntrackUDPSeconds    int32 = 0
	DefaultConntrackUDPStreamSecs int32 = 0
	DefaultTCPBeLiberal                 = Disabled
)

// CompleteSettings returns s with every absent field set to its documented default. The result
// shares no memory with s.
func CompleteSettings(s *ProxySettings) *ProxySettings {
	out := &ProxySettings{}
	if s != nil {
		s.DeepCopyInto(out)
	}
	setDefault(&out.Mode, DefaultMode)
	setDefault(&out.Fallback, DefaultFallback)
	setDefault(&out.Enforcement, DefaultEnforcement)
	setDefault(&out.DetectLocal, DetectLocalSettings{Mode: DefaultDetectLocalMode})
	setDefault(&out.NodePorts, NodePortSettings{})
	setDefault(&out.NodePorts.AddressMode, DefaultNodePortAddressMode)
	setDefault(&out.NodePorts.Localhost, DefaultNodePortLocalhost)
	setDefault(&out.Masquerade, MasqueradeSettings{})
	setDefault(&out.Masquerade.All, DefaultMasqueradeAll)
	setDefault(&out.Masquerade.Bit, DefaultMasqueradeBit)
	setDefault(&out.IPVS, IPVSSettings{})
	setDefault(&out.IPVS.Scheduler, DefaultIPVSScheduler)
	setDefault(&out.IPVS.StrictARP, DefaultStrictARP)
	setDefault(&out.IPVS.TCPTimeoutSeconds, DefaultIPVSTimeoutSeconds)
	setDefault(&out.IPVS.TCPFinTimeoutSeconds, DefaultIPVSTimeoutSeconds)
	setDefault(&out.IPVS.UDPTimeoutSeconds, DefaultIPVSTimeoutSeconds)
	setDefault(&out.Sync, SyncSettings{})
	setDefault(&out.Sync.MinIntervalMilliseconds, DefaultMinIntervalMillis)
	setDefault(&out.Sync.VerifyIntervalSeconds, DefaultVerifyIntervalSeconds)
	setDefault(&out.Conntrack, ConntrackSettings{})
	setDefault(&out.Conntrack.MaxPerCore, DefaultConntrackMaxPerCore)
	setDefault(&out.Conntrack.Min, DefaultConntrackMin)
	setDefault(&out.Conntrack.TCPEstablishedTimeoutSeconds, DefaultTCPEstablishedSeconds)
	setDefault(&out.Conntrack.TCPCloseWaitTimeoutSeconds, DefaultTCPCloseWaitSeconds)
	setDefault(&out.Conntrack.UDPTimeoutSeconds, DefaultConntrackUDPSeconds)
	setDefault(&out.Conntrack.UDPStreamTimeoutSeconds, DefaultConntrackUDPStreamSecs)
	setDefault(&out.Conntrack.TCPBeLiberal, DefaultTCPBeLiberal)
	return out
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
