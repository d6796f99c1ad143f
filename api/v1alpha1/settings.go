package v1alpha1

// ProxyMode is what proxies Services: a kernel facility, or the agent itself.
// +kubebuilder:validation:Enum=IPTables;IPVS;NFTables;Userspace
type ProxyMode string

// Proxy modes.
const (
	ModeIPTables  ProxyMode = "IPTables"
	ModeIPVS      ProxyMode = "IPVS"
	ModeNFTables  ProxyMode = "NFTables"
	ModeUserspace ProxyMode = "Userspace"
)

// Kernel returns the kernel's mode that serves connections in this mode, or redirects them to the agent.
func (m ProxyMode) Kernel() ProxyMode {
	if m == ModeUserspace {
		return ModeIPTables
	}
	return m
}

// FallbackMode is what runs if the kernel does not support the desired mode.
// +kubebuilder:validation:Enum=None;IPTables;NFTables
type FallbackMode string

// Fallback modes.
const (
	FallbackNone     FallbackMode = "None"
	FallbackIPTables FallbackMode = "IPTables"
	FallbackNFTables FallbackMode = "NFTables"
)

// Enforcement is whether the agent programs the kernel or only compares.
// +kubebuilder:validation:Enum=Enforce;Audit
type Enforcement string

// Enforcements.
const (
	Enforce Enforcement = "Enforce"
	Audit   Enforcement = "Audit"
)

// DetectLocalMode is a way to detect traffic from local pods.
// +kubebuilder:validation:Enum=ClusterCIDR;NodeCIDR;BridgeInterface;InterfaceNamePrefix;None
type DetectLocalMode string

// Ways to detect traffic from local pods.
const (
	DetectLocalClusterCIDR         DetectLocalMode = "ClusterCIDR"
	DetectLocalNodeCIDR            DetectLocalMode = "NodeCIDR"
	DetectLocalBridgeInterface     DetectLocalMode = "BridgeInterface"
	DetectLocalInterfaceNamePrefix DetectLocalMode = "InterfaceNamePrefix"
	DetectLocalNone                DetectLocalMode = "None"
)

// NodePortAddressMode selects the node addresses that serve NodePorts.
// +kubebuilder:validation:Enum=All;Primary;CIDRs
type NodePortAddressMode string

// Node addresses that serve NodePorts.
const (
	NodePortsAll     NodePortAddressMode = "All"
	NodePortsPrimary NodePortAddressMode = "Primary"
	NodePortsCIDRs   NodePortAddressMode = "CIDRs"
)

// Toggle enables or disables one behavior.
// +kubebuilder:validation:Enum=Enabled;Disabled
type Toggle string

// Toggle values.
const (
	Enabled  Toggle = "Enabled"
	Disabled Toggle = "Disabled"
)

// Defaults that are numbers or names. Markers refer to constants: controller-gen would copy a literal into
// the CRDs, and the API server would write it into every NodeProxy and policy.
const (
	unchanged                      int32 = 0
	defaultMasqueradeBit           int32 = 14
	defaultScheduler                     = "rr"
	defaultMinIntervalMilliseconds int32 = 250
	defaultVerifyIntervalSeconds   int32 = 60
	defaultMaxPerCore              int32 = 32768
	defaultConntrackMin            int32 = 131072
	defaultTCPEstablishedSeconds   int32 = 86400
	defaultTCPCloseWaitSeconds     int32 = 3600
	defaultConnectMilliseconds     int32 = 250
	defaultMaxConnections          int32 = 100_000
	defaultMaxPerPort              int32 = 50_000
)

// ProxySettings are the proxy settings of one node. All fields are optional for the user; the
// controller fills in the documented defaults, which are kube-proxy's unless docs/parity.md
// gives a reason.
type ProxySettings struct {
	// mode is what proxies Services: IPTables, IPVS, NFTables or Userspace. NFTables needs
	// Linux 5.13 or newer. Choose IPVS only to keep an existing setup running: Kubernetes has
	// deprecated that mode (off by default in 1.40, removed in 1.43). With Userspace, iptables
	// redirects all connections to the agent, which retries endpoints that do not accept and costs
	// more, and endpoints see the node's address as their client; a ServiceProxyPolicy can choose
	// that for single Services in any mode. Default: IPTables. Same as kube-proxy's mode, which no
	// longer has Userspace. Source: user.
	// +optional
	// +default=ref(ModeIPTables)
	Mode *ProxyMode `json:"mode,omitempty"`

	// fallback is what runs if the kernel lacks the desired mode or its IPVS scheduler: None
	// (the node's rules remain unchanged and Accepted becomes False), or IPTables or NFTables
	// (reported as ModeFallback). The agent checks again at each verification. It has no effect
	// with mode IPTables. Default: None. Source: user.
	// +optional
	// +default=ref(FallbackNone)
	Fallback *FallbackMode `json:"fallback,omitempty"`

	// enforcement is Enforce (program the kernel) or Audit (only compare the kernel with the
	// desired rules and report the difference). With Audit, existing rules become stale unless
	// another proxy, such as kube-proxy, maintains them. Default: Enforce. Source: user.
	// +optional
	// +default=ref(Enforce)
	Enforcement *Enforcement `json:"enforcement,omitempty"`

	// detectLocal is how traffic from local pods is detected. Such traffic is not masqueraded
	// on its way to a cluster IP, and reaches all endpoints of a Service with external traffic
	// policy Local. A policy overrides it as a whole. Default: {mode: None}, as kube-proxy
	// without a cluster CIDR. Source: user.
	// +optional
	DetectLocal *DetectLocalSettings `json:"detectLocal,omitempty"`

	// nodePorts selects the node addresses that serve NodePorts. A policy overrides it as a
	// whole. Default: {addressMode: All, localhost: Enabled}. Same as kube-proxy's
	// nodePortAddresses and iptables.localhostNodePorts. Source: user.
	// +optional
	NodePorts *NodePortSettings `json:"nodePorts,omitempty"`

	// masquerade configures source address translation. Source: user.
	// +optional
	Masquerade *MasqueradeSettings `json:"masquerade,omitempty"`

	// ipvs applies in mode IPVS only. Source: user.
	// +optional
	IPVS *IPVSSettings `json:"ipvs,omitempty"`

	// userspace applies to the Services that the agent itself serves. Source: user.
	// +optional
	Userspace *UserspaceSettings `json:"userspace,omitempty"`

	// sync is how often the agent writes to the kernel and verifies it. Source: user.
	// +optional
	Sync *SyncSettings `json:"sync,omitempty"`

	// conntrack configures the kernel's connection tracking table. The agent corrects values at
	// startup, when settings change and at each verification; the message of the condition
	// Programmed lists those that it cannot write. Source: user.
	// +optional
	Conntrack *ConntrackSettings `json:"conntrack,omitempty"`
}

// WrittenSettings are ProxySettings as users write them, in a NodeProxy or NodeProxyPolicy: the
// API server denies invalid values and names the field. Rendered objects use ProxySettings,
// which has only a structural schema.
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || !has(self.detectLocal.clusterCIDRs) || self.detectLocal.clusterCIDRs.all(c, isCIDR(c))`,message=`settings.detectLocal.clusterCIDRs must contain CIDRs such as 10.244.0.0/16 or fd00:10:244::/56`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || !has(self.detectLocal.clusterCIDRs) || self.detectLocal.clusterCIDRs.exists_one(c, isCIDR(c) && cidr(c).ip().family() == 4) || self.detectLocal.clusterCIDRs.size() < 2 || self.detectLocal.clusterCIDRs.exists(c, !isCIDR(c))`,message=`settings.detectLocal.clusterCIDRs must contain at most one CIDR per IP family`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || !has(self.detectLocal.clusterCIDRs) || self.detectLocal.clusterCIDRs.all(c, !isCIDR(c) || cidr(c).prefixLength() > 0)`,message=`settings.detectLocal.clusterCIDRs must not contain 0.0.0.0/0 or ::/0, which would treat every client as a pod: set the pods' actual ranges, or mode None with settings.masquerade.all Enabled`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || self.detectLocal.mode != 'ClusterCIDR' || has(self.detectLocal.clusterCIDRs) && self.detectLocal.clusterCIDRs.size() > 0`,message=`settings.detectLocal.clusterCIDRs is required with mode ClusterCIDR: set the ranges of all pods in the cluster`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || self.detectLocal.mode == 'ClusterCIDR' || !(has(self.detectLocal.clusterCIDRs) && self.detectLocal.clusterCIDRs.size() > 0)`,message=`settings.detectLocal.clusterCIDRs is only valid with mode ClusterCIDR: remove it or change settings.detectLocal.mode`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interface",rule=`!has(self.detectLocal) || self.detectLocal.mode != 'BridgeInterface' || has(self.detectLocal.interface) && self.detectLocal.interface.size() > 0`,message=`settings.detectLocal.interface is required with mode BridgeInterface: set the pods' bridge, such as cni0`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interface",rule=`!has(self.detectLocal) || self.detectLocal.mode == 'BridgeInterface' || !has(self.detectLocal.interface)`,message=`settings.detectLocal.interface is only valid with mode BridgeInterface: remove it or change settings.detectLocal.mode`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interfaceNamePrefix",rule=`!has(self.detectLocal) || self.detectLocal.mode != 'InterfaceNamePrefix' || has(self.detectLocal.interfaceNamePrefix) && self.detectLocal.interfaceNamePrefix.size() > 0`,message=`settings.detectLocal.interfaceNamePrefix is required with mode InterfaceNamePrefix: set the common prefix of pod interface names, such as veth`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interfaceNamePrefix",rule=`!has(self.detectLocal) || self.detectLocal.mode == 'InterfaceNamePrefix' || !has(self.detectLocal.interfaceNamePrefix)`,message=`settings.detectLocal.interfaceNamePrefix is only valid with mode InterfaceNamePrefix: remove it or change settings.detectLocal.mode`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interface",rule=`!has(self.detectLocal) || !has(self.detectLocal.interface) || self.detectLocal.interface.matches('^[A-Za-z0-9_.@-]*$')`,message=`settings.detectLocal.interface may contain only letters, digits and _ . @ -`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interfaceNamePrefix",rule=`!has(self.detectLocal) || !has(self.detectLocal.interfaceNamePrefix) || self.detectLocal.interfaceNamePrefix.matches('^[A-Za-z0-9_.@-]*$')`,message=`settings.detectLocal.interfaceNamePrefix may contain only letters, digits and _ . @ -`
// +kubebuilder:validation:XValidation:fieldPath=".nodePorts.cidrs",rule=`!has(self.nodePorts) || !has(self.nodePorts.cidrs) || self.nodePorts.cidrs.all(c, isCIDR(c))`,message=`settings.nodePorts.cidrs must contain CIDRs such as 192.0.2.0/24 or 2001:db8::/64`
// +kubebuilder:validation:XValidation:fieldPath=".nodePorts.cidrs",rule=`self.?nodePorts.?addressMode.orValue('All') != 'CIDRs' || (has(self.nodePorts.cidrs) && self.nodePorts.cidrs.size() > 0)`,message=`settings.nodePorts.cidrs is required with addressMode CIDRs: set the ranges of local addresses that serve NodePorts`
// +kubebuilder:validation:XValidation:fieldPath=".nodePorts.cidrs",rule=`!has(self.nodePorts) || !has(self.nodePorts.cidrs) || self.nodePorts.cidrs.size() == 0 || self.?nodePorts.?addressMode.orValue('All') == 'CIDRs'`,message=`settings.nodePorts.cidrs is only valid with addressMode CIDRs: remove it or set settings.nodePorts.addressMode to CIDRs`
// +kubebuilder:validation:XValidation:fieldPath=".masquerade.bit",rule=`self.?masquerade.?bit.orValue(14) >= 0 && self.?masquerade.?bit.orValue(14) <= 31`,message=`settings.masquerade.bit must be 0 to 31: the mark is 1<<bit`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.scheduler",rule=`self.?ipvs.?scheduler.orValue('rr') in ['rr', 'wrr', 'lc', 'wlc', 'lblc', 'lblcr', 'dh', 'sh', 'sed', 'nq', 'fo', 'ovf', 'mh', 'twos']`,message=`settings.ipvs.scheduler must be a Linux IPVS scheduler: rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh or twos`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.excludeCIDRs",rule=`!has(self.ipvs) || !has(self.ipvs.excludeCIDRs) || self.ipvs.excludeCIDRs.all(c, isCIDR(c))`,message=`settings.ipvs.excludeCIDRs must contain CIDRs such as 192.0.2.0/24 or 2001:db8::/64`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.tcpTimeoutSeconds",rule=`self.?ipvs.?tcpTimeoutSeconds.orValue(0) >= 0`,message=`settings.ipvs.tcpTimeoutSeconds must be 0 or more; 0 leaves the kernel's value unchanged`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.tcpFinTimeoutSeconds",rule=`self.?ipvs.?tcpFinTimeoutSeconds.orValue(0) >= 0`,message=`settings.ipvs.tcpFinTimeoutSeconds must be 0 or more; 0 leaves the kernel's value unchanged`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.udpTimeoutSeconds",rule=`self.?ipvs.?udpTimeoutSeconds.orValue(0) >= 0`,message=`settings.ipvs.udpTimeoutSeconds must be 0 or more; 0 leaves the kernel's value unchanged`
// +kubebuilder:validation:XValidation:fieldPath=".userspace.connectTimeoutMilliseconds",rule=`self.?userspace.?connectTimeoutMilliseconds.orValue(250) >= 1`,message=`settings.userspace.connectTimeoutMilliseconds must be 1 or more`
// +kubebuilder:validation:XValidation:fieldPath=".userspace.maxConnections",rule=`self.?userspace.?maxConnections.orValue(1) >= 1`,message=`settings.userspace.maxConnections must be 1 or more`
// +kubebuilder:validation:XValidation:fieldPath=".userspace.maxConnectionsPerPort",rule=`self.?userspace.?maxConnectionsPerPort.orValue(1) >= 1`,message=`settings.userspace.maxConnectionsPerPort must be 1 or more`
// +kubebuilder:validation:XValidation:fieldPath=".sync.minIntervalMilliseconds",rule=`self.?sync.?minIntervalMilliseconds.orValue(0) >= 0`,message=`settings.sync.minIntervalMilliseconds must be 0 or more; 0 means no pause between writes`
// +kubebuilder:validation:XValidation:fieldPath=".sync.verifyIntervalSeconds",rule=`self.?sync.?verifyIntervalSeconds.orValue(60) >= 5`,message=`settings.sync.verifyIntervalSeconds must be 5 or more: a verification may read all of the kernel's rules`
// +kubebuilder:validation:XValidation:fieldPath=".sync.verifyIntervalSeconds",rule=`!has(self.sync) || !has(self.sync.verifyIntervalSeconds) || !has(self.sync.minIntervalMilliseconds) || self.sync.verifyIntervalSeconds * 1000 >= self.sync.minIntervalMilliseconds`,message=`settings.sync.verifyIntervalSeconds must not be shorter than settings.sync.minIntervalMilliseconds`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.maxPerCore",rule=`self.?conntrack.?maxPerCore.orValue(0) >= 0`,message=`settings.conntrack.maxPerCore must be 0 or more; 0 leaves the table unchanged`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.min",rule=`self.?conntrack.?min.orValue(0) >= 0`,message=`settings.conntrack.min must be 0 or more; it is the minimum table size in connections`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.tcpEstablishedTimeoutSeconds",rule=`self.?conntrack.?tcpEstablishedTimeoutSeconds.orValue(0) >= 0`,message=`settings.conntrack.tcpEstablishedTimeoutSeconds must be 0 or more; 0 leaves the timeout unchanged`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.tcpCloseWaitTimeoutSeconds",rule=`self.?conntrack.?tcpCloseWaitTimeoutSeconds.orValue(0) >= 0`,message=`settings.conntrack.tcpCloseWaitTimeoutSeconds must be 0 or more; 0 leaves the timeout unchanged`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.udpTimeoutSeconds",rule=`self.?conntrack.?udpTimeoutSeconds.orValue(0) >= 0`,message=`settings.conntrack.udpTimeoutSeconds must be 0 or more; 0 leaves the timeout unchanged`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.udpStreamTimeoutSeconds",rule=`self.?conntrack.?udpStreamTimeoutSeconds.orValue(0) >= 0`,message=`settings.conntrack.udpStreamTimeoutSeconds must be 0 or more; 0 leaves the timeout unchanged`
type WrittenSettings ProxySettings

// DetectLocalSettings is a union: mode selects the field to set.
type DetectLocalSettings struct {
	// mode is how traffic from local pods is detected: ClusterCIDR (its source is in
	// clusterCIDRs), NodeCIDR (in the Node's podCIDRs), BridgeInterface (it enters through
	// interface), InterfaceNamePrefix (through an interface with this prefix) or None (never).
	// Required with detectLocal. An IP family without a range uses None, and the message of the
	// condition Programmed reports this. Same as kube-proxy's detectLocalMode; with
	// None, as with a mode that kube-proxy cannot use, no traffic counts as that of pods. Source: user.
	// +required
	Mode DetectLocalMode `json:"mode"`

	// clusterCIDRs are the ranges of all pods in the cluster, at most one per IP family.
	// Required with mode ClusterCIDR, invalid with others. Host bits are ignored: 10.244.1.5/16
	// is 10.244.0.0/16. Same as kube-proxy's clusterCIDR. Source: user.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=64
	ClusterCIDRs []string `json:"clusterCIDRs,omitempty"`

	// interface is the bridge through which local pods' traffic enters the node, such as cni0.
	// Required with mode BridgeInterface, invalid with others. Same as kube-proxy's
	// detectLocal.bridgeInterface. Source: user.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Interface *string `json:"interface,omitempty"`

	// interfaceNamePrefix is the common prefix of pod interface names, such as veth. Required
	// with mode InterfaceNamePrefix, invalid with others. Same as kube-proxy's
	// detectLocal.interfaceNamePrefix. Source: user.
	// +optional
	// +kubebuilder:validation:MaxLength=14
	InterfaceNamePrefix *string `json:"interfaceNamePrefix,omitempty"`
}

// SetAsWhole marks a struct that policies set and override as a whole.
func (*DetectLocalSettings) SetAsWhole() {}

// NodePortSettings select the node addresses that serve NodePorts.
type NodePortSettings struct {
	// addressMode is All (every local address), Primary (the Node's first address of each IP
	// family) or CIDRs (local addresses in cidrs). If the Node has no address of a family,
	// Primary acts as All for it, and the message of the condition Programmed reports this. Default:
	// All. Same as kube-proxy's nodePortAddresses, but follows address changes without a
	// restart. Source: user.
	// +optional
	// +default=ref(NodePortsAll)
	AddressMode *NodePortAddressMode `json:"addressMode,omitempty"`

	// cidrs are the ranges of local addresses that serve NodePorts. Required with addressMode
	// CIDRs, invalid with others. Host bits are ignored. An IP family without a range uses all
	// its addresses. Same as kube-proxy's nodePortAddresses. Source: user.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	CIDRs []string `json:"cidrs,omitempty"`

	// localhost is whether IPv4 NodePorts are served on 127.0.0.1 in mode IPTables: Enabled
	// (sets the sysctl net.ipv4.conf.all.route_localnet) or Disabled. Default: Enabled. Same as
	// kube-proxy's iptables.localhostNodePorts. Source: user.
	// +optional
	// +default=ref(Enabled)
	Localhost *Toggle `json:"localhost,omitempty"`
}

// SetAsWhole marks a struct that policies set and override as a whole.
func (*NodePortSettings) SetAsWhole() {}

// MasqueradeSettings configure source address translation.
type MasqueradeSettings struct {
	// all is whether all traffic to cluster IPs, including that from pods, is masqueraded:
	// Enabled or Disabled. Default: Disabled. Same as kube-proxy's iptables.masqueradeAll.
	// Source: user.
	// +optional
	// +default=ref(Disabled)
	All *Toggle `json:"all,omitempty"`

	// bit is the packet mark bit that requests masquerading, 0 to 31; the mark is 1<<bit.
	// Default: 14 (mark 0x4000). Same as kube-proxy's iptables.masqueradeBit. Source: user.
	// +optional
	// +default=ref(defaultMasqueradeBit)
	Bit *int32 `json:"bit,omitempty"`
}

// IPVSSettings apply in mode IPVS only.
type IPVSSettings struct {
	// scheduler is the algorithm that picks an endpoint, by the kernel's name: rr, wrr, lc,
	// wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh or twos. The node needs its kernel module,
	// such as ip_vs_rr. Default: rr. Same as kube-proxy's ipvs.scheduler. Source: user.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +default=ref(defaultScheduler)
	Scheduler *string `json:"scheduler,omitempty"`

	// strictARP is whether the node answers ARP only for addresses of its real interfaces:
	// Enabled (sets the sysctls arp_ignore and arp_announce) or Disabled. Default: Disabled.
	// Same as kube-proxy's ipvs.strictARP. Source: user.
	// +optional
	// +default=ref(Disabled)
	StrictARP *Toggle `json:"strictARP,omitempty"`

	// excludeCIDRs are address ranges in which virtual servers are left alone. Host bits are
	// ignored. Default: none. Same as kube-proxy's ipvs.excludeCIDRs. Source: user.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	ExcludeCIDRs []string `json:"excludeCIDRs,omitempty"`

	// tcpTimeoutSeconds is how long an idle TCP session is tracked, in seconds; 0 leaves the
	// kernel's value. Default: 0. Same as kube-proxy's ipvs.tcpTimeout. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(unchanged)
	TCPTimeoutSeconds *int32 `json:"tcpTimeoutSeconds,omitempty"`

	// tcpFinTimeoutSeconds is how long a TCP session is tracked after a FIN, in seconds; 0
	// leaves the kernel's value. Default: 0. Same as kube-proxy's ipvs.tcpFinTimeout. Source:
	// user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(unchanged)
	TCPFinTimeoutSeconds *int32 `json:"tcpFinTimeoutSeconds,omitempty"`

	// udpTimeoutSeconds is how long a UDP flow is tracked, in seconds; 0 leaves the kernel's
	// value. Default: 0. Same as kube-proxy's ipvs.udpTimeout. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(unchanged)
	UDPTimeoutSeconds *int32 `json:"udpTimeoutSeconds,omitempty"`
}

// UserspaceSettings configure how the agent itself serves Services.
type UserspaceSettings struct {
	// connectTimeoutMilliseconds is how long the first endpoint may take to accept a connection, in
	// milliseconds, at least 1. Each of up to three others may take twice as long as the one before
	// it, but no longer than 2 s unless the first one may. Default: 250, as kube-proxy's mode userspace
	// had. Source: user.
	// +kubebuilder:validation:Maximum=60000
	// +optional
	// +default=ref(defaultConnectMilliseconds)
	ConnectTimeoutMilliseconds *int32 `json:"connectTimeoutMilliseconds,omitempty"`

	// maxConnections is how many connections, and UDP clients, the agent serves at a time. More
	// are rejected and counted. Each takes two file descriptors. Default: 100000. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(defaultMaxConnections)
	MaxConnections *int32 `json:"maxConnections,omitempty"`

	// maxConnectionsPerPort is the same for one port of a Service in one IP family, so that one
	// Service leaves some to the others. Default: 50000. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(defaultMaxPerPort)
	MaxConnectionsPerPort *int32 `json:"maxConnectionsPerPort,omitempty"`
}

// SyncSettings are how often the agent writes to the kernel and verifies it.
type SyncSettings struct {
	// minIntervalMilliseconds is the minimum pause between two writes to the kernel, in
	// milliseconds. The first change after a pause is written at once. After a write of more
	// than 25 ms, as with very many rules, the pause is longer, up to 1.5 s; small changes do
	// not wait that long. Default: 250. Corresponds to kube-proxy's minSyncPeriod (1 s there).
	// Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(defaultMinIntervalMilliseconds)
	MinIntervalMilliseconds *int32 `json:"minIntervalMilliseconds,omitempty"`

	// verifyIntervalSeconds is how often the kernel is compared with all desired rules, in
	// seconds, at least 5 and at least minIntervalMilliseconds. The agent reads the kernel's
	// rules if another program may have changed them, if a Service is rejected or a warning is
	// active, and every tenth time in any case. Default: 60. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(defaultVerifyIntervalSeconds)
	VerifyIntervalSeconds *int32 `json:"verifyIntervalSeconds,omitempty"`
}

// ConntrackSettings configure the kernel's connection tracking table.
type ConntrackSettings struct {
	// maxPerCore is the table size per CPU core, in connections; 0 leaves it unchanged. The
	// total is capped at 1048576, and the hash table gets at least a quarter as many buckets.
	// The table is not shrunk if that would fill it to 80% or more. Requires the host's
	// network namespace. Default: 32768. Same as kube-proxy's conntrack.maxPerCore. Source:
	// user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(defaultMaxPerCore)
	MaxPerCore *int32 `json:"maxPerCore,omitempty"`

	// min is the minimum table size, in connections, regardless of the number of cores. Ignored
	// if maxPerCore is 0 or alone gives more than 1048576. Default: 131072. Same as
	// kube-proxy's conntrack.min. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(defaultConntrackMin)
	Min *int32 `json:"min,omitempty"`

	// tcpEstablishedTimeoutSeconds is the timeout of idle established TCP connections, in
	// seconds; 0 leaves it unchanged. Default: 86400 (24 h). Same as kube-proxy's
	// conntrack.tcpEstablishedTimeout. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(defaultTCPEstablishedSeconds)
	TCPEstablishedTimeoutSeconds *int32 `json:"tcpEstablishedTimeoutSeconds,omitempty"`

	// tcpCloseWaitTimeoutSeconds is the timeout of TCP connections in CLOSE_WAIT, in seconds;
	// 0 leaves it unchanged. Default: 3600 (1 h). Same as kube-proxy's
	// conntrack.tcpCloseWaitTimeout. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(defaultTCPCloseWaitSeconds)
	TCPCloseWaitTimeoutSeconds *int32 `json:"tcpCloseWaitTimeoutSeconds,omitempty"`

	// udpTimeoutSeconds is the timeout of unanswered UDP flows, in seconds; 0 leaves it
	// unchanged. Default: 0. Same as kube-proxy's conntrack.udpTimeout. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(unchanged)
	UDPTimeoutSeconds *int32 `json:"udpTimeoutSeconds,omitempty"`

	// udpStreamTimeoutSeconds is the timeout of answered UDP flows, in seconds; 0 leaves it
	// unchanged. Default: 0. Same as kube-proxy's conntrack.udpStreamTimeout. Source: user.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	// +default=ref(unchanged)
	UDPStreamTimeoutSeconds *int32 `json:"udpStreamTimeoutSeconds,omitempty"`

	// tcpBeLiberal is whether TCP packets outside the window are accepted instead of considered
	// invalid: Enabled (sets the sysctl nf_conntrack_tcp_be_liberal) or Disabled (leaves it
	// unchanged). While the sysctl is on, no rule drops invalid packets. Default: Disabled.
	// Same as kube-proxy's conntrack.tcpBeLiberal. Source: user.
	// +optional
	// +default=ref(Disabled)
	TCPBeLiberal *Toggle `json:"tcpBeLiberal,omitempty"`
}
