package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeProxyRulesStatus is what the node's agent reports: the actual state of the kernel.
type NodeProxyRulesStatus struct {
	// conditions: Accepted is True if the agent can use spec, Programmed if the node's rules are
	// as desired, perhaps with the exceptions that its reason and message name; ModeFallback, ConflictingProxy, ConntrackPressure and Drifted indicate a problem when
	// True. Source: agent; the controller sets Programmed Unknown if the agent is not
	// responding.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status describes. Source: agent.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// settingsRevision is the spec.settingsRevision that is applied. Source: agent.
	// +optional
	SettingsRevision string `json:"settingsRevision,omitempty"`

	// mode is the active mode: IPTables, IPVS, NFTables or Userspace, in which endpoints see the
	// node's address as their client. Empty until one is active. Source: agent.
	// +optional
	Mode ProxyMode `json:"mode,omitempty"`

	// families are the programmed IP families: IPv4, IPv6. Programmed is False if a Service
	// needs a family that the node lacks. Source: agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Families []string `json:"families,omitempty"`

	// appliedResourceVersion is the newest ServiceProxyRules version that was in the kernel when
	// this status was written. Source: agent.
	// +optional
	AppliedResourceVersion string `json:"appliedResourceVersion,omitempty"`

	// services is the number of programmed Services. If only counts change, the status is written
	// at most every 5 minutes. The annotation nodeproxy.io/applied-resource-version of the agent's
	// Lease, up to 30 s old, is the newest version in the kernel. Source: agent.
	// +optional
	Services int32 `json:"services"`

	// endpoints is the number of distinct endpoints, up to 5 minutes old. Source: agent.
	// +optional
	Endpoints int32 `json:"endpoints"`

	// localEndpoints is the number of endpoints on this node, up to 5 s old. Source: agent.
	// +optional
	LocalEndpoints int32 `json:"localEndpoints"`

	// retained is the number of Services with rules but without an object. Source: agent.
	// +optional
	Retained int32 `json:"retained"`

	// rejected are Services that this kernel rejects or, in mode IPVS, does not serve at an
	// address because of an unmanaged virtual server. Source: agent.
	// +optional
	Rejected *RejectedServices `json:"rejected,omitempty"`

	// kernel counts what the kernel had at the last verification. Source: agent.
	// +optional
	Kernel *KernelCounts `json:"kernel,omitempty"`

	// lastSync is the last write to the kernel. Source: agent.
	// +optional
	LastSync *SyncReport `json:"lastSync,omitempty"`

	// difference is how the kernel differs from the desired rules: with Audit, or found by
	// verification and not yet repaired. Source: agent.
	// +optional
	Difference *DifferenceReport `json:"difference,omitempty"`

	// drift counts repairs of external modifications. Source: agent.
	// +optional
	Drift *DriftReport `json:"drift,omitempty"`

	// conntrack is the state of the kernel's connection tracking table; absent if the kernel
	// tracks no connections. Source: agent.
	// +optional
	Conntrack *ConntrackReport `json:"conntrack,omitempty"`

	// userspace names endpoints of Services that the agent itself serves, if they do not accept
	// connections. Source: agent.
	// +optional
	Userspace *UserspaceReport `json:"userspace,omitempty"`

	// agent describes the software on the node. Source: agent.
	// +optional
	Agent *AgentReport `json:"agent,omitempty"`
}

// RejectedServices are Services that are not programmed as desired.
type RejectedServices struct {
	// count is the number of Services. Source: agent.
	// +optional
	Count int32 `json:"count"`

	// examples are up to ten of them, as namespace/name: reason, those changed by
	// ServiceProxyPolicies first. Source: agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []string `json:"examples,omitempty"`
}

// KernelCounts counts what the kernel had at the last verification.
type KernelCounts struct {
	// verifiedTime is when the kernel was last read completely. Source: agent.
	// +optional
	VerifiedTime metav1.Time `json:"verifiedTime,omitzero"`

	// chains is the number of our iptables or nftables chains. Source: agent.
	// +optional
	Chains int32 `json:"chains"`

	// rules is the number of rules in them. Source: agent.
	// +optional
	Rules int32 `json:"rules"`

	// ipsetEntries is the number of entries in our ipsets. Source: agent.
	// +optional
	IPSetEntries int32 `json:"ipsetEntries"`

	// virtualServers is the number of our IPVS virtual servers. Source: agent.
	// +optional
	VirtualServers int32 `json:"virtualServers"`

	// realServers is the number of their real servers, including draining ones. Source: agent.
	// +optional
	RealServers int32 `json:"realServers"`

	// sets are the sets and maps of our nftables tables, those of both IP families together,
	// without clients of session affinity. Source: agent.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Sets []SetCount `json:"sets,omitempty"`
}

// SetCount counts the elements of one nftables set or map.
type SetCount struct {
	// name is the set's. Source: agent.
	Name string `json:"name"`

	// elements is how many it has. Source: agent.
	// +optional
	Elements int32 `json:"elements"`
}

// SyncKind is the scope of a sync.
// +kubebuilder:validation:Enum=Full;Partial
type SyncKind string

// Kinds of sync.
const (
	SyncFull    SyncKind = "Full"
	SyncPartial SyncKind = "Partial"
)

// SyncReport is one write to the kernel.
type SyncReport struct {
	// time is when it ended. Source: agent.
	// +optional
	Time metav1.Time `json:"time,omitzero"`

	// durationMilliseconds is how long it took, in milliseconds. Source: agent.
	// +optional
	DurationMilliseconds int64 `json:"durationMilliseconds"`

	// kind is Full (everything was read and compared) or Partial (changed Services). Source:
	// agent.
	// +optional
	Kind SyncKind `json:"kind,omitempty"`

	// servicesChanged is the number of Services whose rules were written. Source: agent.
	// +optional
	ServicesChanged int32 `json:"servicesChanged"`
}

// DifferenceReport is how the kernel differs from the desired rules.
type DifferenceReport struct {
	// count is the number of differences. Source: agent.
	// +optional
	Count int32 `json:"count"`

	// examples are up to ten of them. Source: agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []string `json:"examples,omitempty"`
}

// DriftReport counts repairs of external modifications.
type DriftReport struct {
	// repairs is the number of repairs since the agent started. Source: agent.
	// +optional
	Repairs int64 `json:"repairs"`

	// lastTime is the time of the last repair. Source: agent.
	// +optional
	LastTime metav1.Time `json:"lastTime,omitzero"`

	// examples are up to ten repairs, newest first, with the program that caused them if the
	// kernel reports it. Source: agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []string `json:"examples,omitempty"`
}

// ConntrackReport is the state of the connection tracking table.
type ConntrackReport struct {
	// entries is the number of connections in the table. Source: agent.
	// +optional
	Entries int64 `json:"entries"`

	// max is the actual table size, in connections; 0 means unlimited. Source: agent.
	// +optional
	Max int64 `json:"max"`

	// usagePercent is entries in percent of max, rounded. ConntrackPressure becomes True at 80%
	// and False at 70%. Source: agent.
	// +optional
	UsagePercent int32 `json:"usagePercent"`

	// buckets is the number of hash buckets of the table. Source: agent.
	// +optional
	Buckets int64 `json:"buckets"`

	// insertFailed counts connections that could not be inserted since boot, mostly because
	// another packet had inserted the same one. Source: agent.
	// +optional
	InsertFailed int64 `json:"insertFailed"`

	// drop counts packets dropped since boot because the table was full. Source: agent.
	// +optional
	Drop int64 `json:"drop"`

	// earlyDrop counts unanswered connections evicted from a full table since boot. Source:
	// agent.
	// +optional
	EarlyDrop int64 `json:"earlyDrop"`

	// flowsCleaned counts stale flows removed since the agent started. Source: agent.
	// +optional
	FlowsCleaned int64 `json:"flowsCleaned"`
}

// UserspaceReport is what the agent has noticed about endpoints of Services that it serves itself.
type UserspaceReport struct {
	// failing is the number of endpoints that have accepted none of the connections tried for 10 s
	// or more. Source: agent.
	// +optional
	Failing int32 `json:"failing"`

	// endpoints are up to ten of them, from each namespace in turn. Source: agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Endpoints []FailingEndpoint `json:"endpoints,omitempty"`
}

// EndpointFailure is why an endpoint does not accept a connection.
type EndpointFailure string

// Why an endpoint does not accept a connection.
const (
	EndpointRejects     EndpointFailure = "Rejects"
	EndpointSilent      EndpointFailure = "NoAnswer"
	EndpointResets      EndpointFailure = "Resets"
	EndpointUnreachable EndpointFailure = "Unreachable"
	EndpointLoops       EndpointFailure = "Loop"
)

// FailingEndpoint is an endpoint that does not accept connections. They are tried with others.
type FailingEndpoint struct {
	// service is the Service, as namespace/name. Source: agent.
	Service string `json:"service"`

	// port is the number and protocol of the Service's port, such as 80/TCP. Source: agent.
	Port string `json:"port"`

	// endpoint is the address and port of the endpoint. Source: agent.
	Endpoint string `json:"endpoint"`

	// reason is why the last attempt failed: Rejects, NoAnswer (within its time), Resets (before
	// any byte was transferred), Unreachable or Loop (it is an address of such a Service on this
	// node). Newer agents may add others. Source: agent.
	// +optional
	Reason EndpointFailure `json:"reason,omitempty"`

	// since is the time of the first attempt that failed. Source: agent.
	// +optional
	Since metav1.Time `json:"since,omitzero"`

	// failed is the number of attempts since then, up to 5 minutes old. Source: agent.
	// +optional
	Failed int64 `json:"failed"`

	// connections is the number of connections to the port, and UDP clients, that other endpoints
	// have accepted since then. Source: agent.
	// +optional
	Connections int64 `json:"connections"`

	// rejected is the number of those that no endpoint has accepted. Source: agent.
	// +optional
	Rejected int64 `json:"rejected"`
}

// AgentReport describes the software on the node.
type AgentReport struct {
	// version is the agent's release. Source: agent.
	// +optional
	Version string `json:"version,omitempty"`

	// startTime is when the agent started. Source: agent.
	// +optional
	StartTime metav1.Time `json:"startTime,omitzero"`

	// kernel is the node's kernel release. Source: agent.
	// +optional
	Kernel string `json:"kernel,omitempty"`

	// iptables is iptables' version and variant, such as 1.8.9 (nf_tables). Source: agent.
	// +optional
	IPTables string `json:"iptables,omitempty"`

	// formatVersions are the supported versions of rendered objects. Source: agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	FormatVersions []int32 `json:"formatVersions,omitempty"`

	// modes are the modes that this node could run, checked at startup and when settings change. Mode
	// IPVS is missing, because checking it changes the kernel. Source: agent.
	// +optional
	// +listType=map
	// +listMapKey=mode
	// +kubebuilder:validation:MaxItems=8
	Modes []ModeSupport `json:"modes,omitempty"`
}

// ModeSupport is whether a node can run a mode.
type ModeSupport struct {
	// mode is IPTables, IPVS or NFTables; never Userspace, which needs no more than IPTables. Source: agent.
	Mode ProxyMode `json:"mode"`

	// lacks is what the node lacks for the mode, and what to do. Empty if it can run the mode.
	// Source: agent.
	// +optional
	Lacks string `json:"lacks,omitempty"`
}
