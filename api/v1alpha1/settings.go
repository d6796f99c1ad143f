package v1alpha1

// ProxyMode is the kernel facility that proxies Services.
// +kubebuilder:validation:Enum=IPTables;IPVS
type ProxyMode string

// Proxy modes.
const (
	// ModeIPTables programs nat and filter rules, as kube-proxy's iptables mode.
	ModeIPTables ProxyMode = "IPTables"
	// ModeIPVS programs IPVS virtual servers, as kube-proxy's ipvs mode.
	ModeIPVS ProxyMode = "IPVS"
)

// FallbackMode is what to run when the kernel lacks the wanted mode.
// +kubebuilder:validation:Enum=None;IPTables
type FallbackMode string

// Fallback modes.
const (
	// FallbackNone keeps what the node has and reports Accepted False.
	FallbackNone FallbackMode = "None"
	// FallbackIPTables runs IPTables and reports ModeFallback.
	FallbackIPTables FallbackMode = "IPTables"
)

// Enforcement says whether the agent programs the kernel or only compares.
// +kubebuilder:validation:Enum=Enforce;Audit
type Enforcement string

// Enforcements.
const (
	// Enforce programs the kernel.
	Enforce Enforcement = "Enforce"
	// Audit compares the kernel to what is wanted and reports the difference;
	// it writes nothing.
	Audit Enforcement = "Audit"
)

// DetectLocalMode is a way to recognise traffic that comes from local pods.
// +kubebuilder:validation:Enum=ClusterCIDR;NodeCIDR;BridgeInterface;InterfaceNamePrefix;None
type DetectLocalMode string

// Ways to recognise traffic of local pods.
const (
	// DetectLocalClusterCIDR takes sources inside the given CIDRs as pods.
	DetectLocalClusterCIDR DetectLocalMode = "ClusterCIDR"
	// DetectLocalNodeCIDR takes sources inside the Node's podCIDRs as pods.
	DetectLocalNodeCIDR DetectLocalMode = "NodeCIDR"
	// DetectLocalBridgeInterface takes what enters by one interface as pod traffic.
	DetectLocalBridgeInterface DetectLocalMode = "BridgeInterface"
	// DetectLocalInterfaceNamePrefix takes what enters by interfaces whose
	// names begin with a prefix as pod traffic.
	DetectLocalInterfaceNamePrefix DetectLocalMode = "InterfaceNamePrefix"
	// DetectLocalNone takes nothing as pod traffic.
	DetectLocalNone DetectLocalMode = "None"
)

// NodePortAddressMode selects the node addresses on which NodePorts answer.
// +kubebuilder:validation:Enum=All;Primary;CIDRs
type NodePortAddressMode string

// Selections of node addresses for NodePorts.
const (
	// NodePortsAll answers on every local address.
	NodePortsAll NodePortAddressMode = "All"
	// NodePortsPrimary answers on the Node's first address of each family.
	NodePortsPrimary NodePortAddressMode = "Primary"
	// NodePortsCIDRs answers on local addresses inside the given CIDRs.
	NodePortsCIDRs NodePortAddressMode = "CIDRs"
)

// Toggle switches one behaviour on or off.
// +kubebuilder:validation:Enum=Enabled;Disabled
type Toggle string

// Toggle values.
const (
	// Enabled switches the behaviour on.
	Enabled Toggle = "Enabled"
	// Disabled switches the behaviour off.
	Disabled Toggle = "Disabled"
)

// ProxySettings are the settings of one node's proxy. Every field is optional
// where people write it; the controller completes what is absent from the
// defaults documented at each field, which are kube-proxy's unless
// docs/parity.md gives a reason.
type ProxySettings struct {
	// mode is the kernel facility that proxies Services: IPTables or IPVS.
	// Default: IPTables. Same as kube-proxy's mode. Source: NodeProxy or
	// NodeProxyPolicy. IPVS is for those who need it until they move: Kubernetes
	// retires kube-proxy's ipvs mode (off by default in 1.40, removed in 1.43).
	// +optional
	Mode *ProxyMode `json:"mode,omitempty"`

	// fallback is what runs when the node's kernel lacks the wanted mode, or its
	// IPVS scheduler: None (keep what the node has and report Accepted False) or
	// IPTables (run it and report ModeFallback). Never silent. The agent looks
	// again at each verification. Default: None. Source: NodeProxy or
	// NodeProxyPolicy.
	// +optional
	Fallback *FallbackMode `json:"fallback,omitempty"`

	// enforcement is Enforce (program the kernel) or Audit (stop maintaining
	// rules; only compare the kernel to what is wanted and report the
	// difference). With Audit the rules that are there stay, and nobody maintains
	// them unless another proxy such as kube-proxy runs on the node. Default:
	// Enforce. Source: NodeProxy or NodeProxyPolicy.
	// +optional
	Enforcement *Enforcement `json:"enforcement,omitempty"`

	// detectLocal says how traffic of local pods is recognised: it is not
	// masqueraded on its way to a cluster IP, and reaches all endpoints of a
	// Service with external traffic policy Local. Overridden as a whole.
	// Default: {mode: None}, as kube-proxy without a cluster CIDR. Source:
	// NodeProxy or NodeProxyPolicy.
	// +optional
	DetectLocal *DetectLocalSettings `json:"detectLocal,omitempty"`

	// nodePorts says on which node addresses NodePorts answer. Overridden as a
	// whole. Default: {addressMode: All, localhost: Enabled}. Same as
	// kube-proxy's nodePortAddresses and iptables.localhostNodePorts. Source:
	// NodeProxy or NodeProxyPolicy.
	// +optional
	NodePorts *NodePortSettings `json:"nodePorts,omitempty"`

	// masquerade holds the settings of source address translation. Default:
	// that of each field. Source: NodeProxy or NodeProxyPolicy.
	// +optional
	Masquerade *MasqueradeSettings `json:"masquerade,omitempty"`

	// ipvs holds settings that matter in mode IPVS only. Default: that of each
	// field. Source: NodeProxy or NodeProxyPolicy.
	// +optional
	IPVS *IPVSSettings `json:"ipvs,omitempty"`

	// sync says how often the agent writes to and verifies the kernel. Default:
	// that of each field. Source: NodeProxy or NodeProxyPolicy.
	// +optional
	Sync *SyncSettings `json:"sync,omitempty"`

	// conntrack holds settings of the kernel's connection tracking table.
	// Default: that of each field. The agent writes what differs, at the start,
	// when settings change and at each verification; what cannot be written is
	// named in the message of the condition Programmed. Source: NodeProxy or
	// NodeProxyPolicy.
	// +optional
	Conntrack *ConntrackSettings `json:"conntrack,omitempty"`
}

// WrittenSettings are ProxySettings as people write them, in a NodeProxy or a
// NodeProxyPolicy: what cannot be is refused, and the message names the field.
// Rendered objects carry ProxySettings, whose schema is structural only.
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || !has(self.detectLocal.clusterCIDRs) || self.detectLocal.clusterCIDRs.all(c, isCIDR(c))`,message=`settings.detectLocal.clusterCIDRs must hold CIDRs such as 10.244.0.0/16 or fd00:10:244::/56`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || !has(self.detectLocal.clusterCIDRs) || self.detectLocal.clusterCIDRs.exists_one(c, isCIDR(c) && cidr(c).ip().family() == 4) || self.detectLocal.clusterCIDRs.size() < 2 || self.detectLocal.clusterCIDRs.exists(c, !isCIDR(c))`,message=`settings.detectLocal.clusterCIDRs must hold at most one CIDR of each IP family`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || !has(self.detectLocal.clusterCIDRs) || self.detectLocal.clusterCIDRs.all(c, !isCIDR(c) || cidr(c).prefixLength() > 0)`,message=`settings.detectLocal.clusterCIDRs must not hold 0.0.0.0/0 or ::/0: then everything would be a pod; use mode None with settings.masquerade.all Enabled, or the pods' real ranges`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || self.detectLocal.mode != 'ClusterCIDR' || has(self.detectLocal.clusterCIDRs) && self.detectLocal.clusterCIDRs.size() > 0`,message=`settings.detectLocal.clusterCIDRs is required with mode ClusterCIDR: give the ranges of all pods of the cluster`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.clusterCIDRs",rule=`!has(self.detectLocal) || self.detectLocal.mode == 'ClusterCIDR' || !(has(self.detectLocal.clusterCIDRs) && self.detectLocal.clusterCIDRs.size() > 0)`,message=`settings.detectLocal.clusterCIDRs is only for mode ClusterCIDR: leave it out or change settings.detectLocal.mode`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interface",rule=`!has(self.detectLocal) || self.detectLocal.mode != 'BridgeInterface' || has(self.detectLocal.interface) && self.detectLocal.interface.size() > 0`,message=`settings.detectLocal.interface is required with mode BridgeInterface: give the bridge of the pods, such as cni0`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interface",rule=`!has(self.detectLocal) || self.detectLocal.mode == 'BridgeInterface' || !has(self.detectLocal.interface)`,message=`settings.detectLocal.interface is only for mode BridgeInterface: leave it out or change settings.detectLocal.mode`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interfaceNamePrefix",rule=`!has(self.detectLocal) || self.detectLocal.mode != 'InterfaceNamePrefix' || has(self.detectLocal.interfaceNamePrefix) && self.detectLocal.interfaceNamePrefix.size() > 0`,message=`settings.detectLocal.interfaceNamePrefix is required with mode InterfaceNamePrefix: give how the names of pod interfaces begin, such as veth`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interfaceNamePrefix",rule=`!has(self.detectLocal) || self.detectLocal.mode == 'InterfaceNamePrefix' || !has(self.detectLocal.interfaceNamePrefix)`,message=`settings.detectLocal.interfaceNamePrefix is only for mode InterfaceNamePrefix: leave it out or change settings.detectLocal.mode`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interface",rule=`!has(self.detectLocal) || !has(self.detectLocal.interface) || self.detectLocal.interface.matches('^[A-Za-z0-9_.@-]*$')`,message=`settings.detectLocal.interface may hold letters, digits and _ . @ - only`
// +kubebuilder:validation:XValidation:fieldPath=".detectLocal.interfaceNamePrefix",rule=`!has(self.detectLocal) || !has(self.detectLocal.interfaceNamePrefix) || self.detectLocal.interfaceNamePrefix.matches('^[A-Za-z0-9_.@-]*$')`,message=`settings.detectLocal.interfaceNamePrefix may hold letters, digits and _ . @ - only`
// +kubebuilder:validation:XValidation:fieldPath=".nodePorts.cidrs",rule=`!has(self.nodePorts) || !has(self.nodePorts.cidrs) || self.nodePorts.cidrs.all(c, isCIDR(c))`,message=`settings.nodePorts.cidrs must hold CIDRs such as 192.0.2.0/24 or 2001:db8::/64`
// +kubebuilder:validation:XValidation:fieldPath=".nodePorts.cidrs",rule=`self.?nodePorts.?addressMode.orValue('All') != 'CIDRs' || (has(self.nodePorts.cidrs) && self.nodePorts.cidrs.size() > 0)`,message=`settings.nodePorts.cidrs is required with addressMode CIDRs: give the ranges of local addresses on which NodePorts answer`
// +kubebuilder:validation:XValidation:fieldPath=".nodePorts.cidrs",rule=`!has(self.nodePorts) || !has(self.nodePorts.cidrs) || self.nodePorts.cidrs.size() == 0 || self.?nodePorts.?addressMode.orValue('All') == 'CIDRs'`,message=`settings.nodePorts.cidrs is only for addressMode CIDRs: leave it out or set settings.nodePorts.addressMode to CIDRs`
// +kubebuilder:validation:XValidation:fieldPath=".masquerade.bit",rule=`self.?masquerade.?bit.orValue(14) >= 0 && self.?masquerade.?bit.orValue(14) <= 31`,message=`settings.masquerade.bit must be 0 to 31, as the mark is 1<<bit`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.scheduler",rule=`self.?ipvs.?scheduler.orValue('rr') in ['rr', 'wrr', 'lc', 'wlc', 'lblc', 'lblcr', 'dh', 'sh', 'sed', 'nq', 'fo', 'ovf', 'mh', 'twos']`,message=`settings.ipvs.scheduler must be one that Linux has: rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh or twos`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.excludeCIDRs",rule=`!has(self.ipvs) || !has(self.ipvs.excludeCIDRs) || self.ipvs.excludeCIDRs.all(c, isCIDR(c))`,message=`settings.ipvs.excludeCIDRs must hold CIDRs such as 192.0.2.0/24 or 2001:db8::/64`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.tcpTimeoutSeconds",rule=`self.?ipvs.?tcpTimeoutSeconds.orValue(0) >= 0`,message=`settings.ipvs.tcpTimeoutSeconds must be 0 or more; 0 leaves the kernel's own`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.tcpFinTimeoutSeconds",rule=`self.?ipvs.?tcpFinTimeoutSeconds.orValue(0) >= 0`,message=`settings.ipvs.tcpFinTimeoutSeconds must be 0 or more; 0 leaves the kernel's own`
// +kubebuilder:validation:XValidation:fieldPath=".ipvs.udpTimeoutSeconds",rule=`self.?ipvs.?udpTimeoutSeconds.orValue(0) >= 0`,message=`settings.ipvs.udpTimeoutSeconds must be 0 or more; 0 leaves the kernel's own`
// +kubebuilder:validation:XValidation:fieldPath=".sync.minIntervalMilliseconds",rule=`self.?sync.?minIntervalMilliseconds.orValue(0) >= 0`,message=`settings.sync.minIntervalMilliseconds must be 0 or more; 0 means no pause between two writes`
// +kubebuilder:validation:XValidation:fieldPath=".sync.verifyIntervalSeconds",rule=`self.?sync.?verifyIntervalSeconds.orValue(60) >= 5`,message=`settings.sync.verifyIntervalSeconds must be 5 or more, as every verification reads all rules of the kernel`
// +kubebuilder:validation:XValidation:fieldPath=".sync.verifyIntervalSeconds",rule=`!has(self.sync) || !has(self.sync.verifyIntervalSeconds) || !has(self.sync.minIntervalMilliseconds) || self.sync.verifyIntervalSeconds * 1000 >= self.sync.minIntervalMilliseconds`,message=`settings.sync.verifyIntervalSeconds must not be shorter than settings.sync.minIntervalMilliseconds`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.maxPerCore",rule=`self.?conntrack.?maxPerCore.orValue(0) >= 0`,message=`settings.conntrack.maxPerCore must be 0 or more; 0 leaves the table as it is`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.min",rule=`self.?conntrack.?min.orValue(0) >= 0`,message=`settings.conntrack.min must be 0 or more; it is the least size of the table in connections`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.tcpEstablishedTimeoutSeconds",rule=`self.?conntrack.?tcpEstablishedTimeoutSeconds.orValue(0) >= 0`,message=`settings.conntrack.tcpEstablishedTimeoutSeconds must be 0 or more; 0 leaves the timeout as it is`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.tcpCloseWaitTimeoutSeconds",rule=`self.?conntrack.?tcpCloseWaitTimeoutSeconds.orValue(0) >= 0`,message=`settings.conntrack.tcpCloseWaitTimeoutSeconds must be 0 or more; 0 leaves the timeout as it is`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.udpTimeoutSeconds",rule=`self.?conntrack.?udpTimeoutSeconds.orValue(0) >= 0`,message=`settings.conntrack.udpTimeoutSeconds must be 0 or more; 0 leaves the timeout as it is`
// +kubebuilder:validation:XValidation:fieldPath=".conntrack.udpStreamTimeoutSeconds",rule=`self.?conntrack.?udpStreamTimeoutSeconds.orValue(0) >= 0`,message=`settings.conntrack.udpStreamTimeoutSeconds must be 0 or more; 0 leaves the timeout as it is`
type WrittenSettings ProxySettings

// DetectLocalSettings is a union: mode names the member that is set.
type DetectLocalSettings struct {
	// mode is how traffic of local pods is recognised: ClusterCIDR, NodeCIDR,
	// BridgeInterface, InterfaceNamePrefix or None. Required when detectLocal
	// is given. A family without range (NodeCIDR: in the Node's podCIDRs) has
	// mode None, and the message of the condition Programmed says so. Same as kube-proxy's detectLocalMode; None stands for
	// kube-proxy without a usable detector. Source: NodeProxy or
	// NodeProxyPolicy.
	// +required
	Mode DetectLocalMode `json:"mode"`

	// clusterCIDRs are the address ranges of all pods of the cluster, at most
	// one for each IP family. Required with mode ClusterCIDR, refused with any
	// other. Bits after the prefix do not count: 10.244.1.5/16 is 10.244.0.0/16.
	// Same as kube-proxy's clusterCIDR. Source: NodeProxy or NodeProxyPolicy.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=64
	ClusterCIDRs []string `json:"clusterCIDRs,omitempty"`

	// interface is the bridge by which traffic of local pods enters the node,
	// such as cni0. Required with mode BridgeInterface, refused with any other.
	// Same as kube-proxy's detectLocal.bridgeInterface. Source: NodeProxy or
	// NodeProxyPolicy.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Interface *string `json:"interface,omitempty"`

	// interfaceNamePrefix is how the names of pod interfaces begin, such as
	// veth. Required with mode InterfaceNamePrefix, refused with any other.
	// Same as kube-proxy's detectLocal.interfaceNamePrefix. Source: NodeProxy
	// or NodeProxyPolicy.
	// +optional
	// +kubebuilder:validation:MaxLength=14
	InterfaceNamePrefix *string `json:"interfaceNamePrefix,omitempty"`
}

// NodePortSettings says on which node addresses NodePorts answer.
type NodePortSettings struct {
	// addressMode selects the addresses: All (every local address), Primary
	// (the Node's first address of each family) or CIDRs (local addresses
	// inside cidrs). While the Node has no address of a family, Primary is All,
	// and the message of the condition Programmed says so. Default: All. Same as
	// kube-proxy's nodePortAddresses, but changes are followed without a
	// restart. Source: NodeProxy or NodeProxyPolicy.
	// +optional
	AddressMode *NodePortAddressMode `json:"addressMode,omitempty"`

	// cidrs are the ranges of local addresses on which NodePorts answer.
	// Required with addressMode CIDRs, refused with any other. Bits after the
	// prefix do not count. A family without any range answers on all its
	// addresses. Same as kube-proxy's nodePortAddresses. Source: NodeProxy or
	// NodeProxyPolicy.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	CIDRs []string `json:"cidrs,omitempty"`

	// localhost says whether IPv4 NodePorts answer on 127.0.0.1 in mode
	// IPTables: Enabled or Disabled. Enabled needs the sysctl
	// net.ipv4.conf.all.route_localnet, which the agent sets. Default: Enabled.
	// Same as kube-proxy's iptables.localhostNodePorts. Source: NodeProxy or
	// NodeProxyPolicy.
	// +optional
	Localhost *Toggle `json:"localhost,omitempty"`
}

// MasqueradeSettings are the settings of source address translation.
type MasqueradeSettings struct {
	// all masquerades all traffic to cluster IPs, that of pods too: Enabled or
	// Disabled. Default: Disabled. Same as kube-proxy's iptables.masqueradeAll.
	// Source: NodeProxy or NodeProxyPolicy.
	// +optional
	All *Toggle `json:"all,omitempty"`

	// bit is the bit of the packet mark that stands for "masquerade this
	// packet", 0 to 31; the mark is 1<<bit. Default: 14 (mark 0x4000). Same as
	// kube-proxy's iptables.masqueradeBit. Source: NodeProxy or
	// NodeProxyPolicy.
	// +optional
	Bit *int32 `json:"bit,omitempty"`
}

// IPVSSettings matter in mode IPVS only.
type IPVSSettings struct {
	// scheduler is the kernel's name of the algorithm that picks an endpoint: rr,
	// wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh or twos. The node
	// needs its module, ip_vs_rr and so on. Default: rr. Same as kube-proxy's
	// ipvs.scheduler. Source: NodeProxy or NodeProxyPolicy.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	Scheduler *string `json:"scheduler,omitempty"`

	// strictARP sets the sysctls arp_ignore and arp_announce so that the node
	// answers ARP for addresses of its real interfaces only: Enabled or
	// Disabled. Default: Disabled. Same as kube-proxy's ipvs.strictARP. Source:
	// NodeProxy or NodeProxyPolicy.
	// +optional
	StrictARP *Toggle `json:"strictARP,omitempty"`

	// excludeCIDRs are address ranges whose virtual servers are left alone.
	// Bits after the prefix do not count. Default: none. Same as kube-proxy's ipvs.excludeCIDRs. Source: NodeProxy
	// or NodeProxyPolicy.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	ExcludeCIDRs []string `json:"excludeCIDRs,omitempty"`

	// tcpTimeoutSeconds is how long an idle TCP session is remembered, in
	// seconds; 0 leaves the kernel's own. Default: 0. Same as kube-proxy's
	// ipvs.tcpTimeout. Source: NodeProxy or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	TCPTimeoutSeconds *int32 `json:"tcpTimeoutSeconds,omitempty"`

	// tcpFinTimeoutSeconds is how long a TCP session is remembered after a FIN,
	// in seconds; 0 leaves the kernel's own. Default: 0. Same as kube-proxy's
	// ipvs.tcpFinTimeout. Source: NodeProxy or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	TCPFinTimeoutSeconds *int32 `json:"tcpFinTimeoutSeconds,omitempty"`

	// udpTimeoutSeconds is how long a UDP flow is remembered, in seconds; 0
	// leaves the kernel's own. Default: 0. Same as kube-proxy's
	// ipvs.udpTimeout. Source: NodeProxy or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	UDPTimeoutSeconds *int32 `json:"udpTimeoutSeconds,omitempty"`
}

// SyncSettings say how often the agent writes to and verifies the kernel.
type SyncSettings struct {
	// minIntervalMilliseconds is the least time between the end of one write to
	// the kernel and the start of the next, in milliseconds. The first change
	// after a pause is written at once. After a write of more than 25 ms, as with
	// very many rules, the pause is longer, up to 1.5 s. Small changes do not wait
	// for the pause after large ones, and that between both counts from the start
	// of the large write. Default: 250.
	// Corresponds to kube-proxy's minSyncPeriod (1 s there). Source: NodeProxy
	// or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	MinIntervalMilliseconds *int32 `json:"minIntervalMilliseconds,omitempty"`

	// verifyIntervalSeconds is how often the whole of the kernel's rules is
	// compared to what is wanted, in seconds, at least 5 and at least
	// minIntervalMilliseconds. The kernel's rules are read where somebody else
	// may have changed them since, where a Service is refused or something is
	// warned of, and every tenth time in any case. Default: 60. Source: NodeProxy
	// or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	VerifyIntervalSeconds *int32 `json:"verifyIntervalSeconds,omitempty"`
}

// ConntrackSettings are the settings of the kernel's connection tracking
// table. Zero leaves the kernel's value as it is.
type ConntrackSettings struct {
	// maxPerCore is the size of the table per CPU core, in connections; 0
	// leaves the table as it is. No number of cores gives more than 1048576. The
	// hash table gets at least a quarter as many buckets. A table is not made
	// smaller while that would fill it to 80 % or more. Needs the host's network
	// namespace. Default: 32768. Same as kube-proxy's conntrack.maxPerCore.
	// Source: NodeProxy or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	MaxPerCore *int32 `json:"maxPerCore,omitempty"`

	// min is the least size of the table, in connections, whatever the number
	// of cores; ignored when maxPerCore is 0, or gives more than 1048576 by
	// itself. Default: 131072. Same as kube-proxy's conntrack.min. Source:
	// NodeProxy or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Min *int32 `json:"min,omitempty"`

	// tcpEstablishedTimeoutSeconds is how long an idle established TCP
	// connection is kept, in seconds; 0 leaves it as it is. Default: 86400 (24
	// h). Same as kube-proxy's conntrack.tcpEstablishedTimeout. Source:
	// NodeProxy or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	TCPEstablishedTimeoutSeconds *int32 `json:"tcpEstablishedTimeoutSeconds,omitempty"`

	// tcpCloseWaitTimeoutSeconds is how long a TCP connection in CLOSE_WAIT is
	// kept, in seconds; 0 leaves it as it is. Default: 3600 (1 h). Same as
	// kube-proxy's conntrack.tcpCloseWaitTimeout. Source: NodeProxy or
	// NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	TCPCloseWaitTimeoutSeconds *int32 `json:"tcpCloseWaitTimeoutSeconds,omitempty"`

	// udpTimeoutSeconds is how long a UDP flow without an answer is kept, in
	// seconds; 0 leaves it as it is. Default: 0. Same as kube-proxy's
	// conntrack.udpTimeout. Source: NodeProxy or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	UDPTimeoutSeconds *int32 `json:"udpTimeoutSeconds,omitempty"`

	// udpStreamTimeoutSeconds is how long an answered UDP flow is kept, in
	// seconds; 0 leaves it as it is. Default: 0. Same as kube-proxy's
	// conntrack.udpStreamTimeout. Source: NodeProxy or NodeProxyPolicy.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	UDPStreamTimeoutSeconds *int32 `json:"udpStreamTimeoutSeconds,omitempty"`

	// tcpBeLiberal accepts TCP packets outside the window instead of taking
	// them as invalid: Enabled (sets the sysctl nf_conntrack_tcp_be_liberal) or
	// Disabled (leaves it as it is). While the sysctl is on, no rule drops
	// invalid packets. Default: Disabled. Same as kube-proxy's
	// conntrack.tcpBeLiberal. Source: NodeProxy or NodeProxyPolicy.
	// +optional
	TCPBeLiberal *Toggle `json:"tcpBeLiberal,omitempty"`
}
