package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeProxyRulesSpec is what a node needs in addition to the ServiceProxyRules: its settings,
// facts and local endpoints. The controller reverts manual edits.
type NodeProxyRulesSpec struct {
	// formatVersion is the version of this object's format. An agent that does not know it
	// leaves its rules unchanged. Source: controller.
	// +required
	FormatVersion int32 `json:"formatVersion"`

	// settingsRevision is a hash of the settings that differ from the documented defaults. The
	// agent copies it to its status once the settings are applied. Default: the controller has
	// not set it yet. Source: controller.
	// +optional
	SettingsRevision string `json:"settingsRevision,omitempty"`

	// settings are the complete settings of this node; an absent field has its documented
	// default. Source: NodeProxy and the NodeProxyPolicies that select the node.
	// +optional
	Settings ProxySettings `json:"settings"`

	// policies are the NodeProxyPolicies that shaped this object, strongest first. Default:
	// none. Source: controller.
	// +optional
	// +listType=atomic
	Policies []string `json:"policies,omitempty"`

	// policySummary is policies, comma-separated, for printing. Default: none. Source:
	// policies.
	// +optional
	PolicySummary string `json:"policySummary,omitempty"`

	// node contains the Node's facts; agents do not read Nodes. Source: the Node.
	// +optional
	Node NodeFacts `json:"node"`

	// localEndpoints are this node's endpoints of every Service, in any state, sorted by
	// namespace and name, without Services over a limit (docs/security.md). Default: none.
	// Source: the EndpointSlices.
	// +optional
	// +listType=atomic
	LocalEndpoints []ServiceLocalEndpoints `json:"localEndpoints,omitempty"`
}

// NodeFacts are what an agent needs to know about its Node.
type NodeFacts struct {
	// addresses are the Node's InternalIPs, then its ExternalIPs, in canonical form. The first
	// of each IP family is the node's primary address. Default: none. Source: the Node's
	// status.addresses.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`

	// podCIDRs are the node's pod ranges. Default: none. Source: the Node's spec.podCIDRs.
	// +optional
	// +listType=atomic
	PodCIDRs []string `json:"podCIDRs,omitempty"`

	// zone of the node. Default: none. Source: the Node's label topology.kubernetes.io/zone.
	// +optional
	Zone string `json:"zone,omitempty"`

	// draining is true if the Node is absent, being deleted, or tainted
	// ToBeDeletedByClusterAutoscaler: load balancers should send no new connections. Default:
	// false. Source: the Node.
	// +optional
	Draining bool `json:"draining"`
}

// ServiceLocalEndpoints are one node's endpoints of one Service.
type ServiceLocalEndpoints struct {
	// namespace of the Service. Source: the EndpointSlices.
	// +required
	Namespace string `json:"namespace"`

	// name of the Service. Source: the EndpointSlices.
	// +required
	Name string `json:"name"`

	// ports with endpoints on this node. Default: none. Source: the EndpointSlices.
	// +optional
	// +listType=atomic
	Ports []PortLocalEndpoints `json:"ports,omitempty"`
}

// PortLocalEndpoints are one node's endpoints of one port.
type PortLocalEndpoints struct {
	// name of the port. Default: empty. Source: the EndpointSlices.
	// +optional
	Name string `json:"name"`

	// protocol of the port: TCP, UDP or SCTP. Source: the EndpointSlices.
	// +required
	Protocol Protocol `json:"protocol"`

	// endpoints as ip:port, IPv6 as [ip]:port, sorted as strings. Source: the EndpointSlices.
	// +required
	// +listType=atomic
	Endpoints []string `json:"endpoints"`
}

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

	// mode is the active mode: IPTables or IPVS. Empty until one is active. Source: agent.
	// +optional
	Mode ProxyMode `json:"mode,omitempty"`

	// families are the programmed IP families: IPv4, IPv6. Programmed is False if a Service
	// needs a family that the node lacks. Source: agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Families []string `json:"families,omitempty"`

	// appliedResourceVersion is the newest ServiceProxyRules version in the kernel. Source:
	// agent.
	// +optional
	AppliedResourceVersion string `json:"appliedResourceVersion,omitempty"`

	// services is the number of programmed Services. Source: agent.
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

	// chains is the number of our iptables chains. Source: agent.
	// +optional
	Chains int32 `json:"chains"`

	// rules is the number of iptables rules in them. Source: agent.
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

	// usagePercent is entries in percent of max, rounded. ConntrackPressure becomes True at 80
	// % and False at 70 %. Source: agent.
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
}

// NodeProxyRules is what a node should program in addition to the ServiceProxyRules, and the
// actual state of its kernel. It is named after the Node.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=nodeproxyrules,singular=nodeproxyrules,shortName=npr,categories=nodeproxy-all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="Enforcement",type=string,JSONPath=`.spec.settings.enforcement`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.status.services`
// +kubebuilder:printcolumn:name="Endpoints",type=integer,JSONPath=`.status.endpoints`
// +kubebuilder:printcolumn:name="Local",type=integer,JSONPath=`.status.localEndpoints`
// +kubebuilder:printcolumn:name="Diff",type=integer,JSONPath=`.status.difference.count`
// +kubebuilder:printcolumn:name="Conntrack%",type=integer,JSONPath=`.status.conntrack.usagePercent`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`
// +kubebuilder:printcolumn:name="Policies",type=string,priority=1,JSONPath=`.spec.policySummary`
// +kubebuilder:printcolumn:name="Repairs",type=integer,priority=1,JSONPath=`.status.drift.repairs`
// +kubebuilder:printcolumn:name="Last-Sync",type=date,priority=1,JSONPath=`.status.lastSync.time`
// +kubebuilder:printcolumn:name="Kernel",type=string,priority=1,JSONPath=`.status.agent.kernel`
// +kubebuilder:printcolumn:name="Agent",type=string,priority=1,JSONPath=`.status.agent.version`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeProxyRules struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the node should program.
	// +required
	Spec NodeProxyRulesSpec `json:"spec"`

	// status is the actual state of the node's kernel.
	// +optional
	Status NodeProxyRulesStatus `json:"status,omitzero"`
}

// NodeProxyRulesList is a list of NodeProxyRules.
// +kubebuilder:object:root=true
type NodeProxyRulesList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeProxyRules `json:"items"`
}
