package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeProxySpec is what people ask of the proxy in the whole cluster.
type NodeProxySpec struct {
	// settings are the default settings of every node's proxy. NodeProxyPolicies
	// override them. Default: that of each field. Source: people or GitOps.
	// +optional
	// +kubebuilder:validation:XValidation:fieldPath=".sync.verifyIntervalSeconds",rule=`self.?sync.?verifyIntervalSeconds.orValue(60) * 1000 >= self.?sync.?minIntervalMilliseconds.orValue(250)`,message=`settings.sync.verifyIntervalSeconds (60 unless given) must not be shorter than settings.sync.minIntervalMilliseconds (250 unless given)`
	Settings *WrittenSettings `json:"settings,omitempty"`

	// rollout says how fast a change of these settings reaches the nodes, and the
	// change by which a deleted NodeProxyPolicy ends. Other changes by a policy
	// keep to its own rollout. Default: that of each field. Source: people or
	// GitOps.
	// +optional
	Rollout *RolloutSettings `json:"rollout,omitempty"`

	// agent says who runs the node agents and how. Default: that of each field.
	// Source: people or GitOps.
	// +optional
	Agent *AgentSettings `json:"agent,omitempty"`

	// apiServer says where the agents, and the controllers that run as pods,
	// reach the API server. Default: that of each field. Source: people or
	// GitOps.
	// +optional
	APIServer *APIServerSettings `json:"apiServer,omitempty"`

	// removalPolicy is what becomes of the rules on the nodes when this object
	// is deleted: Retain (agents keep and repair them) or Cleanup (agents
	// remove them; the object stays until the nodes have, for five minutes at
	// the longest, and everything that was rendered goes with it). With
	// agent.management Managed, Cleanup deletes the agents' DaemonSet too.
	// Default: Retain. Source: people or GitOps.
	// +optional
	RemovalPolicy *RemovalPolicy `json:"removalPolicy,omitempty"`
}

// AgentManagement says who runs the node agents.
// +kubebuilder:validation:Enum=Managed;Unmanaged
type AgentManagement string

// Ways to run the node agents.
const (
	// AgentManaged: the controller runs the agents as a DaemonSet.
	AgentManaged AgentManagement = "Managed"
	// AgentUnmanaged: the agents are run by hand.
	AgentUnmanaged AgentManagement = "Unmanaged"
)

// AgentSettings say who runs the node agents and how.
type AgentSettings struct {
	// management is Managed (the controller runs the agents as the DaemonSet
	// nodeproxy-agent in its own namespace) or Unmanaged (they are run by hand).
	// A change to Unmanaged, like the deletion of this object, leaves the
	// DaemonSet and its agents as they are; the controller only stops looking
	// after them. Default: Unmanaged. Source: people or GitOps.
	// +optional
	Management *AgentManagement `json:"management,omitempty"`

	// image is the agent's container image. Only for management Managed, as all
	// that follows. Default: the controller's environment variable
	// RELATED_IMAGE_AGENT. Source: people or GitOps.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Image *string `json:"image,omitempty"`

	// resources are the agent container's requests and limits, in Kubernetes
	// quantities. Default: those of the built-in DaemonSet. Source: people or
	// GitOps.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// nodeSelector limits the nodes on which the controller runs agents, by
	// node labels, beside kubernetes.io/os: linux. A node that it leaves out
	// later loses its agent and keeps its rules, which grow old there until
	// another proxy or `nodeproxy-agent cleanup` takes them over or away.
	// Default: every Linux node. Source: people or GitOps.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations replace those of the agent pods, but for what Kubernetes gives
	// the pods of every DaemonSet. Default: every taint is tolerated. Source:
	// people or GitOps.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// logLevel is the verbosity of the agent's log: 0 for changes an operator
	// wants to see, 2 for every sync, 4 for details. Default: 0. Source: people
	// or GitOps.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self >= 0`,message=`agent.logLevel must be 0 or more`
	LogLevel *int32 `json:"logLevel,omitempty"`

	// stateDir is the folder on the node in which the agent keeps its last good
	// state; agents call it /var/lib/nodeproxy all the same, as their container
	// does. Default: /var/lib/nodeproxy. Source: people or GitOps.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self.startsWith('/')`,message=`agent.stateDir must be an absolute path, such as /var/lib/nodeproxy`
	StateDir *string `json:"stateDir,omitempty"`
}

// APIServerSettings say where the agents reach the API server.
type APIServerSettings struct {
	// endpoints are the https URLs of the API servers, such as
	// https://192.0.2.10:6443, tried in turn; never the address of the
	// kubernetes Service, which the agents themselves program. Default: the
	// addresses of the EndpointSlice default/kubernetes. Source: people or
	// GitOps.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:XValidation:rule=`self.all(e, isURL(e) && url(e).getScheme() == 'https' && url(e).getHostname() != '')`,message=`apiServer.endpoints must hold https URLs such as https://192.0.2.10:6443`
	// +kubebuilder:validation:XValidation:rule=`self.all(e, !isURL(e) || url(e).getEscapedPath() in ['', '/'] && url(e).getQuery().size() == 0)`,message=`apiServer.endpoints must hold addresses only, such as https://192.0.2.10:6443, without a path`
	Endpoints []string `json:"endpoints,omitempty"`
}

// RemovalPolicy is what becomes of the rules when the NodeProxy is deleted.
// +kubebuilder:validation:Enum=Retain;Cleanup
type RemovalPolicy string

// Removal policies.
const (
	// RemovalRetain keeps the rules; agents go on repairing them.
	RemovalRetain RemovalPolicy = "Retain"
	// RemovalCleanup removes the rules from every node.
	RemovalCleanup RemovalPolicy = "Cleanup"
)

// NodeProxyStatus is what the controller reports about the whole cluster.
type NodeProxyStatus struct {
	// conditions: Ready is True when every node's kernel holds what is wanted, no
	// change of spec.settings is on its way to nodes, and nothing is wrong with how
	// the agents are run. AgentsDeployed, with
	// management Managed only, is True while every node runs the agent that is
	// wanted and it is ready. Source: the controller.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status is about.
	// Source: the controller.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// version is the release of the controller that wrote this status. Source:
	// the controller.
	// +optional
	Version string `json:"version,omitempty"`

	// inventory says which ServiceProxyRules must exist. Absent means unknown,
	// not zero. Source: the controller, from its Services.
	// +optional
	Inventory *Inventory `json:"inventory,omitempty"`

	// refusedServices is the number of Services that cannot be rendered or
	// stored; each is named in an event. Source: the controller.
	// +optional
	RefusedServices int32 `json:"refusedServices"`

	// refused names the ten newest of the refused Services. Source: the
	// controller.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Refused []RefusedService `json:"refused,omitempty"`

	// nodes counts the nodes by what their agents report. Source: the
	// controller, from the status of NodeProxyRules.
	// +optional
	Nodes NodeCounts `json:"nodes"`
}

// Inventory says which ServiceProxyRules must exist, so that an agent can tell
// a complete list from one that lost something.
type Inventory struct {
	// services is the number of names. Source: the controller.
	// +required
	Services int32 `json:"services"`

	// hash is the sum modulo 2^64 of the names' 64-bit FNV-1a, in 16
	// hexadecimal digits. Source: the controller.
	// +required
	Hash string `json:"hash"`
}

// RefusedService names a Service that is not programmed, and why.
type RefusedService struct {
	// namespace is that of the Service. Source: the controller.
	// +required
	Namespace string `json:"namespace"`

	// name is that of the Service. Source: the controller.
	// +required
	Name string `json:"name"`

	// message says what is wrong and where. Source: the controller.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// NodeCounts counts nodes by what their agents report. A node can count in
// several of them.
type NodeCounts struct {
	// total is the number of NodeProxyRules whose Node exists; no others count
	// here. Source: the controller.
	// +optional
	Total int32 `json:"total"`

	// programmed is the number of nodes whose kernel holds what is wanted.
	// Source: the controller, from the status of NodeProxyRules.
	// +optional
	Programmed int32 `json:"programmed"`

	// notProgrammed is the number of nodes that report Programmed False.
	// Source: the controller, from the status of NodeProxyRules.
	// +optional
	NotProgrammed int32 `json:"notProgrammed"`

	// stale is the number of nodes whose agent gives no sign of life: the
	// controller has seen no change of its Lease for 90 seconds. Source: the
	// controller, from the status of NodeProxyRules.
	// +optional
	Stale int32 `json:"stale"`

	// audit is the number of nodes that only compare. Source: the controller,
	// from the status of NodeProxyRules.
	// +optional
	Audit int32 `json:"audit"`

	// fallback is the number of nodes that run another mode than the wanted
	// one. Source: the controller, from the status of NodeProxyRules.
	// +optional
	Fallback int32 `json:"fallback"`

	// lagging is the number of nodes that have not applied changes older than
	// 60 seconds, but for stale ones and those where another proxy is active.
	// Source: the controller, from the agents' Leases.
	// +optional
	Lagging int32 `json:"lagging"`
}

// NodeProxy switches nodeproxy on for the whole cluster and holds the default
// settings of every node. There is one, named cluster; nothing is rendered
// before it first exists.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=nodeproxies,singular=nodeproxy
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes.total`
// +kubebuilder:printcolumn:name="Programmed",type=integer,JSONPath=`.status.nodes.programmed`
// +kubebuilder:printcolumn:name="Stale",type=integer,JSONPath=`.status.nodes.stale`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.status.inventory.services`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`self.metadata.name == 'cluster'`,message=`metadata.name must be cluster: there is one NodeProxy for the whole cluster`
type NodeProxy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what people ask of the proxy in the whole cluster.
	// +optional
	Spec NodeProxySpec `json:"spec,omitempty"`

	// status is what the controller reports about the whole cluster.
	// +optional
	Status NodeProxyStatus `json:"status,omitzero"`
}

// NodeProxyList is a list of NodeProxy.
// +kubebuilder:object:root=true
type NodeProxyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the objects.
	Items []NodeProxy `json:"items"`
}
