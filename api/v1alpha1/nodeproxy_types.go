package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeProxySpec is the desired configuration of the proxy for the whole cluster.
type NodeProxySpec struct {
	// settings are every node's settings, unless NodeProxyPolicies override them. Source: user.
	// +optional
	// +kubebuilder:validation:XValidation:fieldPath=".sync.verifyIntervalSeconds",rule=`self.?sync.?verifyIntervalSeconds.orValue(60) * 1000 >= self.?sync.?minIntervalMilliseconds.orValue(250)`,message=`settings.sync.verifyIntervalSeconds (default 60) must not be shorter than settings.sync.minIntervalMilliseconds (default 250)`
	Settings *WrittenSettings `json:"settings,omitempty"`

	// rollout controls how fast changes of these settings, and of a deleted NodeProxyPolicy,
	// reach the nodes. Other changes of a policy follow its own rollout. Source: user.
	// +optional
	Rollout *RolloutSettings `json:"rollout,omitempty"`

	// agent configures who runs the node agents, and how. Source: user.
	// +optional
	Agent *AgentSettings `json:"agent,omitempty"`

	// apiServer configures how agents and controllers in pods reach the API server. Source:
	// user.
	// +optional
	APIServer *APIServerSettings `json:"apiServer,omitempty"`

	// removalPolicy is what happens to the nodes' rules when this object is deleted: Retain
	// (agents continue to maintain them, and the controller to update existing objects) or Cleanup (agents remove them). With Cleanup, the
	// object remains until all nodes are clean, for at most five minutes; then all rendered
	// objects and a managed DaemonSet are deleted. Default: Retain. Source: user.
	// +optional
	RemovalPolicy *RemovalPolicy `json:"removalPolicy,omitempty"`
}

// AgentManagement is who runs the node agents.
// +kubebuilder:validation:Enum=Managed;Unmanaged
type AgentManagement string

// Ways to run the node agents.
const (
	AgentManaged   AgentManagement = "Managed"
	AgentUnmanaged AgentManagement = "Unmanaged"
)

// AgentSettings configure who runs the node agents, and how.
type AgentSettings struct {
	// management is Managed (the controller runs the agents as the DaemonSet nodeproxy-agent in
	// its own namespace) or Unmanaged (the user runs them, for example with config/agent). A
	// change to Unmanaged, or the deletion of this object, leaves the DaemonSet in place,
	// unmaintained. Default: Unmanaged, so that privileged pods start only on request, and
	// agents that the user runs are not taken over. Source: user.
	// +optional
	Management *AgentManagement `json:"management,omitempty"`

	// image is the agent's container image. This and all fields below apply with management
	// Managed only. Default: the controller's environment variable RELATED_IMAGE_AGENT. Source:
	// user.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Image *string `json:"image,omitempty"`

	// imagePullSecrets are Secrets of type kubernetes.io/dockerconfigjson in the controller's
	// namespace, with which nodes pull the image. Default: none; nodes use their own credentials.
	// Source: user.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule=`self.all(s, has(s.name) && s.name.size() > 0 && s.name.size() <= 253)`,message=`agent.imagePullSecrets must name Secrets, such as name: registry`
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// resources are the agent container's requests and limits, in Kubernetes quantities.
	// Default: those of the built-in DaemonSet. Source: user.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// nodeSelector limits the nodes that run agents, by node labels, in addition to
	// kubernetes.io/os: linux. A node that is no longer selected loses its agent but retains
	// its rules, which become stale until another proxy takes over or `nodeproxy-agent cleanup`
	// removes them. Default: all Linux nodes. Source: user.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations replace those of the agent pods, except what Kubernetes adds to pods of every
	// DaemonSet. Default: tolerate all taints. Source: user.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// priorityClassName is the PriorityClass of the agent pods, which must exist. With a lower one
	// than the default, other pods can evict the proxy from a node. Default: system-node-critical.
	// Source: user.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName *string `json:"priorityClassName,omitempty"`

	// logLevel is the verbosity of the agent's log: 0 for changes relevant to operators, 2 for
	// every sync, 4 for details. Default: 0. Source: user.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self >= 0`,message=`agent.logLevel must be 0 or more`
	LogLevel *int32 `json:"logLevel,omitempty"`

	// logFormat is the format of the agent's log: Text, or JSON with one object in each line.
	// Default: Text. Source: user.
	// +optional
	LogFormat *LogFormat `json:"logFormat,omitempty"`

	// stateDir is the directory on the node for the agent's checkpoint. Agents log its path in
	// their container, /var/lib/nodeproxy. Default: /var/lib/nodeproxy. Source: user.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self.startsWith('/')`,message=`agent.stateDir must be an absolute path, such as /var/lib/nodeproxy`
	StateDir *string `json:"stateDir,omitempty"`
}

// LogFormat is the format of a log.
// +kubebuilder:validation:Enum=Text;JSON
type LogFormat string

// Formats of logs.
const (
	LogText LogFormat = "Text"
	LogJSON LogFormat = "JSON"
)

// APIServerSettings configure how agents reach the API server.
type APIServerSettings struct {
	// endpoints are the https URLs of the API servers, such as https://192.0.2.10:6443, tried
	// in turn. Do not use the address of the kubernetes Service: the agents themselves program
	// it. Default: the addresses in the EndpointSlice default/kubernetes. Source: user.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:XValidation:rule=`self.all(e, isURL(e) && url(e).getScheme() == 'https' && url(e).getHostname() != '')`,message=`apiServer.endpoints must contain https URLs such as https://192.0.2.10:6443`
	// +kubebuilder:validation:XValidation:rule=`self.all(e, !isURL(e) || url(e).getEscapedPath() in ['', '/'] && url(e).getQuery().size() == 0)`,message=`apiServer.endpoints must not have a path or query: use URLs such as https://192.0.2.10:6443`
	Endpoints []string `json:"endpoints,omitempty"`
}

// RemovalPolicy is what happens to the rules when the NodeProxy is deleted.
// +kubebuilder:validation:Enum=Retain;Cleanup
type RemovalPolicy string

// Removal policies.
const (
	RemovalRetain  RemovalPolicy = "Retain"
	RemovalCleanup RemovalPolicy = "Cleanup"
)

// NodeProxyStatus is the observed state of the whole cluster.
type NodeProxyStatus struct {
	// conditions: Ready is True if all nodes are programmed, no change of spec.settings is in
	// progress, and the agents are deployed without errors. AgentsDeployed (with management
	// Managed only) is True while every node runs the desired agent and it is ready. While Ready
	// is not True, either Stalled is, which takes intervention, or Reconciling; neither is while
	// paused. Source: controller.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status describes, or -1 if the
	// controller has not seen the object. Source: controller.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// version is the release of the controller that wrote this status. Source: controller.
	// +optional
	Version string `json:"version,omitempty"`

	// inventory identifies all ServiceProxyRules; absent means unknown. Source: controller.
	// +optional
	Inventory *Inventory `json:"inventory,omitempty"`

	// unrenderedServices is the number of Services that cannot be rendered or stored, each with
	// an event. Source: controller.
	// +optional
	UnrenderedServices int32 `json:"unrenderedServices"`

	// unrendered lists the ten newest of them. Source: controller.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Unrendered []UnrenderedService `json:"unrendered,omitempty"`

	// nodes counts nodes by what their agents report. Source: controller, from NodeProxyRules.
	// +optional
	Nodes NodeCounts `json:"nodes"`
}

// Inventory lets an agent detect an incomplete list of ServiceProxyRules.
type Inventory struct {
	// services is the number of names. Source: controller.
	// +required
	Services int32 `json:"services"`

	// hash is the sum modulo 2^64 of the names' 64-bit FNV-1a hashes, as 16 hexadecimal
	// digits. Source: controller.
	// +required
	Hash string `json:"hash"`
}

// UnrenderedService is a Service that cannot be rendered or stored.
type UnrenderedService struct {
	// namespace of the Service. Source: controller.
	// +required
	Namespace string `json:"namespace"`

	// name of the Service. Source: controller.
	// +required
	Name string `json:"name"`

	// message states what is wrong. Source: controller.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// NodeCounts counts nodes that exist by what their agents report. A node can be in several
// counts.
type NodeCounts struct {
	// total is the number of NodeProxyRules whose Node exists. Source: controller.
	// +optional
	Total int32 `json:"total"`

	// programmed is the number of nodes whose kernel has all desired rules. Source: controller.
	// +optional
	Programmed int32 `json:"programmed"`

	// notProgrammed is the number of nodes that report Programmed False. Source: controller.
	// +optional
	NotProgrammed int32 `json:"notProgrammed"`

	// stale is the number of nodes without a heartbeat for 90 seconds. Source: controller.
	// +optional
	Stale int32 `json:"stale"`

	// audit is the number of nodes with enforcement Audit. Source: controller.
	// +optional
	Audit int32 `json:"audit"`

	// fallback is the number of nodes that run a fallback mode. Source: controller.
	// +optional
	Fallback int32 `json:"fallback"`

	// lagging is the number of nodes that have not applied changes older than 60 seconds,
	// except stale nodes and those with another active proxy. Source: controller.
	// +optional
	Lagging int32 `json:"lagging"`
}

// NodeProxy enables nodeproxy in the cluster and contains the default settings of all nodes.
// There is one, named cluster; the controller renders nothing until it is first created.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=nodeproxies,singular=nodeproxy,categories=nodeproxy-all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes.total`
// +kubebuilder:printcolumn:name="Programmed",type=integer,JSONPath=`.status.nodes.programmed`
// +kubebuilder:printcolumn:name="Stale",type=integer,JSONPath=`.status.nodes.stale`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.status.inventory.services`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`self.metadata.name == 'cluster'`,message=`metadata.name must be cluster: a cluster has one NodeProxy`
type NodeProxy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired configuration.
	// +optional
	Spec NodeProxySpec `json:"spec,omitempty"`

	// status is the observed state of the whole cluster.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status NodeProxyStatus `json:"status,omitzero"`
}

// NodeProxyList is a list of NodeProxy.
// +kubebuilder:object:root=true
type NodeProxyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeProxy `json:"items"`
}
