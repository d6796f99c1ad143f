package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeProxyRulesSpec is what one node needs besides the ServiceProxyRules: its
// settings, its facts and which endpoints live on it. The controller writes
// it; hand edits are reverted.
type NodeProxyRulesSpec struct {
	// formatVersion is the version of the format of this object. An agent that
	// does not know it leaves its rules as they are. Source: the controller.
	// +required
	FormatVersion int32 `json:"formatVersion"`

	// settingsRevision is a hash of the settings that differ from the
	// documented defaults. The agent echoes it in its status once the settings
	// are in force. Default (absent): none yet. Source: the controller.
	// +optional
	SettingsRevision string `json:"settingsRevision,omitempty"`

	// settings are the complete settings of this node; a field that is absent
	// has its documented default. Source: NodeProxy, the NodeProxyPolicies that
	// match the node, and the documented defaults.
	// +optional
	Settings ProxySettings `json:"settings"`

	// policies are the NodeProxyPolicies that shaped this object, strongest
	// first. Default: none. Source: the controller.
	// +optional
	// +listType=atomic
	Policies []string `json:"policies,omitempty"`

	// node is what the agent would otherwise read from the Node. Default: that
	// of each field. Source: the Node.
	// +optional
	Node NodeFacts `json:"node"`

	// services are this node's endpoints of every Service, in any state, but for
	// Services that are over a limit (docs/security.md). Sorted by namespace and
	// name. Default (absent): none. Source: the EndpointSlices.
	// +optional
	// +listType=atomic
	Services []ServiceMembers `json:"services,omitempty"`
}

// NodeFacts are what an agent needs to know of its Node.
type NodeFacts struct {
	// addresses are the Node's InternalIPs, then its ExternalIPs, in canonical
	// form. The first of each family is the node's primary address of that
	// family. Default (absent): none. Source: the Node's status.addresses.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`

	// podCIDRs are the ranges of this node's pods. Default (absent): none.
	// Source: the Node's spec.podCIDRs.
	// +optional
	// +listType=atomic
	PodCIDRs []string `json:"podCIDRs,omitempty"`

	// zone is the node's zone. Default (empty): none. Source: the Node's label
	// topology.kubernetes.io/zone.
	// +optional
	Zone string `json:"zone,omitempty"`

	// draining is true when the Node is absent, being deleted, or tainted
	// ToBeDeletedByClusterAutoscaler: load balancers should send no new
	// connections. Default: false. Source: the Node.
	// +optional
	Draining bool `json:"draining"`
}

// ServiceMembers are one node's endpoints of one Service.
type ServiceMembers struct {
	// namespace is that of the Service. Source: the EndpointSlices.
	// +required
	Namespace string `json:"namespace"`

	// name is that of the Service. Source: the EndpointSlices.
	// +required
	Name string `json:"name"`

	// ports are the ports of the Service that have endpoints on this node.
	// Default (absent): none. Source: the EndpointSlices.
	// +optional
	// +listType=atomic
	Ports []PortMembers `json:"ports,omitempty"`
}

// PortMembers are one node's endpoints of one port.
type PortMembers struct {
	// name is that of the port. Default (empty): the port has no name. Source:
	// the EndpointSlices.
	// +optional
	Name string `json:"name"`

	// protocol is that of the port: TCP, UDP or SCTP. Source: the
	// EndpointSlices.
	// +required
	Protocol Protocol `json:"protocol"`

	// endpoints are ip:port, IPv6 as [ip]:port, sorted as strings. Source: the
	// EndpointSlices.
	// +required
	// +listType=atomic
	Endpoints []string `json:"endpoints"`
}

// NodeProxyRulesStatus is what the node's agent reports: what the kernel
// really holds.
type NodeProxyRulesStatus struct {
	// conditions: Accepted and Programmed say whether the node does what is
	// wanted; ModeFallback, ConflictingProxy, ConntrackPressure and Drifted are
	// abnormal when True. Source: the agent; Programmed Unknown by the
	// controller when the agent gives no sign of life.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status is about.
	// Source: the agent.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// settingsRevision is the spec.settingsRevision that is in force. Source:
	// the agent.
	// +optional
	SettingsRevision string `json:"settingsRevision,omitempty"`

	// mode is the mode that runs: IPTables or IPVS. Empty until one does.
	// Source: the agent.
	// +optional
	Mode ProxyMode `json:"mode,omitempty"`

	// families are the IP families that are programmed: IPv4, IPv6. One that
	// the node lacks is missing; the condition Programmed is False if a Service
	// needs it. Source: the agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Families []string `json:"families,omitempty"`

	// appliedResourceVersion is the newest resourceVersion of a
	// ServiceProxyRules that the kernel holds. Source: the agent.
	// +optional
	AppliedResourceVersion string `json:"appliedResourceVersion,omitempty"`

	// services is the number of Services that are programmed. Source: the
	// agent.
	// +optional
	Services int32 `json:"services"`

	// endpoints is the number of distinct endpoints of those Services. A change
	// of it alone is reported within 5 min. Source: the agent.
	// +optional
	Endpoints int32 `json:"endpoints"`

	// localEndpoints is how many of the endpoints live on this node. A change is
	// reported within 5 s. Source: the agent.
	// +optional
	LocalEndpoints int32 `json:"localEndpoints"`

	// held is the number of Services whose object has vanished without being
	// released; their rules stay. Source: the agent.
	// +optional
	Held int32 `json:"held"`

	// refused are Services that this kernel would not take, or, in mode IPVS, not
	// at an address where a virtual server of others stands. Source: the agent.
	// +optional
	Refused *RefusedServices `json:"refused,omitempty"`

	// kernel counts what the kernel held at the last verification. Source: the
	// agent.
	// +optional
	Kernel *KernelCounts `json:"kernel,omitempty"`

	// lastSync is the last write to the kernel. Source: the agent.
	// +optional
	LastSync *SyncReport `json:"lastSync,omitempty"`

	// difference is how the kernel differs from what is wanted: with Audit, or
	// found by verification and not yet repaired. Source: the agent.
	// +optional
	Difference *DifferenceReport `json:"difference,omitempty"`

	// drift counts repairs of what others changed. Source: the agent.
	// +optional
	Drift *DriftReport `json:"drift,omitempty"`

	// conntrack is the state of the connection tracking table, as the kernel
	// tells it; absent while the kernel tracks no connections. Source: the agent.
	// +optional
	Conntrack *ConntrackReport `json:"conntrack,omitempty"`

	// agent says what runs on the node. Source: the agent.
	// +optional
	Agent *AgentReport `json:"agent,omitempty"`
}

// RefusedServices are Services that are not programmed as wanted.
type RefusedServices struct {
	// count is the number of Services. Source: the agent.
	// +optional
	Count int32 `json:"count"`

	// examples are up to ten of them, as namespace/name: reason, first those that
	// ServiceProxyPolicies shape. Source: the agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []string `json:"examples,omitempty"`
}

// KernelCounts counts what the kernel held at the last verification.
type KernelCounts struct {
	// verifiedTime is when the kernel was last read in full. Source: the agent.
	// +optional
	VerifiedTime metav1.Time `json:"verifiedTime,omitzero"`

	// chains is the number of our iptables chains. Source: the agent.
	// +optional
	Chains int32 `json:"chains"`

	// rules is the number of iptables rules in them. Source: the agent.
	// +optional
	Rules int32 `json:"rules"`

	// ipsetEntries is the number of entries in our ipsets. Source: the agent.
	// +optional
	IPSetEntries int32 `json:"ipsetEntries"`

	// virtualServers is the number of our IPVS virtual servers. Source: the
	// agent.
	// +optional
	VirtualServers int32 `json:"virtualServers"`

	// realServers is the number of their real servers, also of those that are
	// about to go. Source: the agent.
	// +optional
	RealServers int32 `json:"realServers"`
}

// SyncKind says how much a sync looked at.
// +kubebuilder:validation:Enum=Full;Partial
type SyncKind string

// Kinds of sync.
const (
	// SyncFull read the kernel and compared all of it.
	SyncFull SyncKind = "Full"
	// SyncPartial looked at changed Services only.
	SyncPartial SyncKind = "Partial"
)

// SyncReport is one write to the kernel.
type SyncReport struct {
	// time is when it ended. Source: the agent.
	// +optional
	Time metav1.Time `json:"time,omitzero"`

	// durationMilliseconds is how long it took, in milliseconds. Source: the
	// agent.
	// +optional
	DurationMilliseconds int64 `json:"durationMilliseconds"`

	// kind is Full (the kernel was read and all of it compared) or Partial
	// (changed Services only). Source: the agent.
	// +optional
	Kind SyncKind `json:"kind,omitempty"`

	// servicesChanged is the number of Services whose rules were written.
	// Source: the agent.
	// +optional
	ServicesChanged int32 `json:"servicesChanged"`
}

// DifferenceReport is how the kernel differs from what is wanted.
type DifferenceReport struct {
	// count is the number of differences. Source: the agent.
	// +optional
	Count int32 `json:"count"`

	// examples are up to ten of them. Source: the agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []string `json:"examples,omitempty"`
}

// DriftReport counts repairs of what others changed.
type DriftReport struct {
	// repairs is the number of repairs since the agent started. Source: the
	// agent.
	// +optional
	Repairs int64 `json:"repairs"`

	// lastTime is when the last repair was made. Source: the agent.
	// +optional
	LastTime metav1.Time `json:"lastTime,omitzero"`

	// examples are up to ten of what was repaired, the newest first, with the
	// program that had changed it where the kernel tells. Source: the agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []string `json:"examples,omitempty"`
}

// ConntrackReport is the state of the connection tracking table.
type ConntrackReport struct {
	// entries is the number of connections in the table. Source: the agent.
	// +optional
	Entries int64 `json:"entries"`

	// max is the size of the table that is in force, in connections, whatever
	// the settings ask for; 0: any number. Source: the agent.
	// +optional
	Max int64 `json:"max"`

	// usagePercent is entries in percent of max, rounded. From 80 % on the
	// condition ConntrackPressure is True, until it is 70 % or less. Source: the
	// agent.
	// +optional
	UsagePercent int32 `json:"usagePercent"`

	// buckets is the number of hash buckets of the table. Source: the agent.
	// +optional
	Buckets int64 `json:"buckets"`

	// insertFailed counts connections that could not be entered since the node
	// started, mostly because another packet had entered the same one. Source:
	// the agent.
	// +optional
	InsertFailed int64 `json:"insertFailed"`

	// drop counts packets dropped because the table was full since the node
	// started. Source: the agent.
	// +optional
	Drop int64 `json:"drop"`

	// earlyDrop counts unanswered connections evicted from a full table to make
	// room since the node started. Source: the agent.
	// +optional
	EarlyDrop int64 `json:"earlyDrop"`

	// flowsCleaned counts stale flows that the agent removed since it started.
	// Source: the agent.
	// +optional
	FlowsCleaned int64 `json:"flowsCleaned"`
}

// AgentReport says what runs on the node.
type AgentReport struct {
	// version is the release of the agent. Source: the agent.
	// +optional
	Version string `json:"version,omitempty"`

	// startTime is when the agent started. Source: the agent.
	// +optional
	StartTime metav1.Time `json:"startTime,omitzero"`

	// kernel is the release of the node's kernel. Source: the agent.
	// +optional
	Kernel string `json:"kernel,omitempty"`

	// iptables is the version and variant of the node's iptables, such as 1.8.9
	// (nf_tables). Source: the agent.
	// +optional
	IPTables string `json:"iptables,omitempty"`

	// formatVersions are the versions of rendered objects that the agent
	// understands. Source: the agent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	FormatVersions []int32 `json:"formatVersions,omitempty"`
}

// NodeProxyRules is what one node should program besides the
// ServiceProxyRules, and what its kernel really holds. Named as the Node.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=nodeproxyrules,singular=nodeproxyrules,shortName=npr
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
// +kubebuilder:printcolumn:name="Policies",type=string,priority=1,JSONPath=`.spec.policies`
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

	// status is what the node's kernel really holds.
	// +optional
	Status NodeProxyRulesStatus `json:"status,omitzero"`
}

// NodeProxyRulesList is a list of NodeProxyRules.
// +kubebuilder:object:root=true
type NodeProxyRulesList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the objects.
	Items []NodeProxyRules `json:"items"`
}
