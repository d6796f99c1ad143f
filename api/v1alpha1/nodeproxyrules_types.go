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

	// localEndpoints are this node's endpoints, in any state, of every Service within the limits
	// (docs/security.md), sorted by namespace and name: for policy Local, health checks, pods that
	// reach themselves, and status. Default: none. Source: the EndpointSlices.
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

// +k8s:defaulter-gen=true

// NodeProxyRules is what a node should program in addition to the ServiceProxyRules, and the
// actual state of its kernel. It is named after the Node.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=nodeproxyrules,singular=nodeproxyrules,shortName=npr,categories=nodeproxy-all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].reason`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.status.services`
// +kubebuilder:printcolumn:name="Diff",type=integer,JSONPath=`.status.difference.count`
// +kubebuilder:printcolumn:name="Enforcement",type=string,priority=1,JSONPath=`.spec.settings.enforcement`
// +kubebuilder:printcolumn:name="Endpoints",type=integer,priority=1,JSONPath=`.status.endpoints`
// +kubebuilder:printcolumn:name="Local",type=integer,priority=1,JSONPath=`.status.localEndpoints`
// +kubebuilder:printcolumn:name="Conntrack%",type=integer,priority=1,JSONPath=`.status.conntrack.usagePercent`
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
