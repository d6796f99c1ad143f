package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TrafficPolicy selects the endpoints that receive traffic.
// +kubebuilder:validation:Enum=Cluster;Local
type TrafficPolicy string

// Traffic policies.
const (
	TrafficPolicyCluster TrafficPolicy = "Cluster"
	TrafficPolicyLocal   TrafficPolicy = "Local"
)

// EndpointState is how usable an endpoint is.
// +kubebuilder:validation:Enum=Ready;Terminating
type EndpointState string

// Endpoint states.
const (
	EndpointReady       EndpointState = "Ready"
	EndpointTerminating EndpointState = "Terminating"
)

// Serving is who serves a Service's connections.
// +kubebuilder:validation:Enum=Kernel;Userspace
type Serving string

// Who serves connections.
const (
	ServingKernel    Serving = "Kernel"
	ServingUserspace Serving = "Userspace"
)

// Protocol is the transport protocol of a port.
// +kubebuilder:validation:Enum=TCP;UDP;SCTP
type Protocol string

// Protocols.
const (
	ProtocolTCP  Protocol = "TCP"
	ProtocolUDP  Protocol = "UDP"
	ProtocolSCTP Protocol = "SCTP"
)

// ServiceProxyRulesSpec is a Service and its endpoints. The controller reverts manual edits.
type ServiceProxyRulesSpec struct {
	// formatVersion is the version of this object's format. An agent that does not know it
	// leaves its rules unchanged. Source: controller.
	// +required
	FormatVersion int32 `json:"formatVersion"`

	// released is true if the Service was deleted or is no longer proxied: agents remove its
	// rules, and the object is about to be deleted. If an object vanishes without this mark,
	// nodes retain its rules. Default: false. Source: controller.
	// +optional
	Released bool `json:"released,omitempty"`

	// serviceCreated is when the Service was created. If two Services claim the same address
	// and port, the winner is the Service whose cluster IP it is, then the one whose node port
	// it is on a Node's address, then a live one, then the older one, then the lower name.
	// Default: treated as the newest. Source: the Service's metadata.creationTimestamp, unless it
	// has only cluster IPs.
	// +optional
	ServiceCreated metav1.Time `json:"serviceCreated,omitzero"`

	// clusterIPs are the Service's cluster IPs, at most one per IP family, in canonical form.
	// Default: none. Source: the Service's spec.clusterIPs.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	ClusterIPs []string `json:"clusterIPs,omitempty"`

	// externalIPs are the Service's external IPs, in canonical form and in its order. Default:
	// none. Source: the Service's spec.externalIPs, unless a ServiceProxyPolicy disables them.
	// +optional
	// +listType=atomic
	ExternalIPs []string `json:"externalIPs,omitempty"`

	// loadBalancerIPs are the load balancer's addresses that the nodes serve themselves, in
	// canonical form and in its order. Default: none. Source: the Service's
	// status.loadBalancer.ingress, entries with an ip and ipMode VIP.
	// +optional
	// +listType=atomic
	LoadBalancerIPs []string `json:"loadBalancerIPs,omitempty"`

	// nodeAddresses are those externalIPs and loadBalancerIPs that are also Node addresses, in
	// canonical form. There another Service's node port wins, and a node in mode IPVS programs
	// only its own. Default: none. Source: the Nodes' status.addresses.
	// +optional
	// +listType=atomic
	NodeAddresses []string `json:"nodeAddresses,omitempty"`

	// skippedAddresses are the Service's external and load-balancer IPs that no Service may
	// use, so that no node programs them. Default: none. Source: controller.
	// +optional
	// +listType=atomic
	SkippedAddresses []SkippedAddress `json:"skippedAddresses,omitempty"`

	// loadBalancerSourceRanges are the client ranges allowed to use the load balancer's
	// addresses, in canonical form and in the source's order. Default: no restriction. Source:
	// a ServiceProxyPolicy, else the Service's spec.loadBalancerSourceRanges.
	// +optional
	// +listType=atomic
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`

	// externalTrafficPolicy is the effective policy for NodePorts, external IPs and
	// load-balancer IPs: Cluster or Local. Default: Cluster. Source: a ServiceProxyPolicy,
	// else the Service's spec.externalTrafficPolicy, if effective.
	// +optional
	ExternalTrafficPolicy TrafficPolicy `json:"externalTrafficPolicy,omitempty"`

	// internalTrafficPolicy is the policy for cluster IPs: Cluster or Local. Default: Cluster.
	// Source: a ServiceProxyPolicy, else the Service's spec.internalTrafficPolicy.
	// +optional
	InternalTrafficPolicy TrafficPolicy `json:"internalTrafficPolicy,omitempty"`

	// sessionAffinity sends each client's connections to one endpoint. Default: none. Source:
	// a ServiceProxyPolicy, else the Service's spec.sessionAffinity.
	// +optional
	SessionAffinity *SessionAffinity `json:"sessionAffinity,omitempty"`

	// healthCheckNodePort is the port on which load balancers check whether this node has
	// ready endpoints. Default: 0 (none). Source: the Service's spec.healthCheckNodePort, if
	// effective.
	// +optional
	HealthCheckNodePort int32 `json:"healthCheckNodePort,omitempty"`

	// ipvsScheduler of the Service. Default: the node's. Source: a ServiceProxyPolicy.
	// +optional
	IPVSScheduler string `json:"ipvsScheduler,omitempty"`

	// serving is Userspace if the agents themselves serve the Service: its endpoints see the node's
	// address as their client. Default: Kernel, unless the node's mode is Userspace. Source: a
	// ServiceProxyPolicy.
	// +optional
	Serving Serving `json:"serving,omitempty"`

	// policies are the ServiceProxyPolicies that shaped this object, strongest first. Default:
	// none. Source: controller.
	// +optional
	// +listType=atomic
	Policies []string `json:"policies,omitempty"`

	// policySummary is policies, comma-separated, for printing. Default: none. Source:
	// policies.
	// +optional
	PolicySummary string `json:"policySummary,omitempty"`

	// portSummary is each port as port:nodePort/protocol, for printing. Default: none. Source:
	// ports.
	// +optional
	PortSummary string `json:"portSummary,omitempty"`

	// endpointCount is the number of distinct endpoints, for printing. Default: 0. Source:
	// ports.
	// +optional
	EndpointCount int32 `json:"endpointCount"`

	// ports are the Service's ports. Default: none. Source: the Service's spec.ports.
	// +optional
	// +listType=atomic
	Ports []ServicePort `json:"ports,omitempty"`

	// endpoints are the usable endpoints, grouped by target ports, state and hints, sorted. Default:
	// none. Source: the EndpointSlices. In formatVersion 1 the ports have them.
	// +optional
	// +listType=atomic
	Endpoints []EndpointGroup `json:"endpoints,omitempty"`
}

// SkippedAddress is an address of a Service that no node programs.
type SkippedAddress struct {
	// address in canonical form. Source: the Service.
	// +required
	Address string `json:"address"`

	// reason completes a sentence that begins with the address, such as "is a loopback
	// address". Source: controller.
	// +required
	Reason string `json:"reason"`
}

// SessionAffinity sends each client's connections to one endpoint.
type SessionAffinity struct {
	// clientIPTimeoutSeconds is how long a client without new connections keeps its endpoint,
	// in seconds. The API server's default is 10800 (3 h). Source: a ServiceProxyPolicy, else
	// the Service's sessionAffinityConfig.clientIP.timeoutSeconds.
	// +required
	ClientIPTimeoutSeconds int32 `json:"clientIPTimeoutSeconds"`
}

// ServicePort is one port of a Service.
type ServicePort struct {
	// name of the port. Default: empty. Source: the Service's spec.ports.
	// +optional
	Name string `json:"name"`

	// protocol of the port: TCP, UDP or SCTP. Source: the Service's spec.ports.
	// +required
	Protocol Protocol `json:"protocol"`

	// port on cluster, external and load-balancer IPs. Source: the Service's spec.ports.
	// +required
	Port int32 `json:"port"`

	// nodePort is the port on node addresses. Default: 0 (none). Source: the Service's
	// spec.ports, unless a ServiceProxyPolicy disables them.
	// +optional
	NodePort int32 `json:"nodePort,omitempty"`

	// endpoints of this port, in formatVersion 1 only: each once, as ip:port, grouped by state and
	// hints, sorted. Default: none. Source: the EndpointSlices.
	// +optional
	// +listType=atomic
	Endpoints []EndpointGroup `json:"endpoints,omitempty"`
}

// EndpointGroup is a set of endpoints with the same target ports, state and hints.
type EndpointGroup struct {
	// targetPorts are the ports of the endpoints by the name of the Service's port that they serve.
	// Default: none, because in formatVersion 1 addresses have them. Source: the EndpointSlices.
	// +optional
	TargetPorts map[string]int32 `json:"targetPorts,omitempty"`

	// state is Ready, or Terminating (not ready, but serving and terminating: used only if no
	// endpoint is ready). Default: Ready. Source: the endpoint's conditions.
	// +optional
	State EndpointState `json:"state,omitempty"`

	// zones in the topology hints of the endpoints, sorted. Default: none. Source: hints.forZones.
	// +optional
	// +listType=atomic
	Zones []string `json:"zones,omitempty"`

	// nodes in the topology hints of the endpoints, sorted. Default: none. Source: hints.forNodes.
	// +optional
	// +listType=atomic
	Nodes []string `json:"nodes,omitempty"`

	// addresses in canonical form, each once, sorted as strings; in formatVersion 1 as ip:port, IPv6 as
	// [ip]:port. Source: the EndpointSlices.
	// +required
	// +listType=atomic
	Addresses []string `json:"addresses"`
}

// ServiceProxyRules is all that nodes need to know about one Service. The controller renders it
// from the Service, its EndpointSlices and policies; every agent programs it. It is named
// <namespace>.<service>.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=serviceproxyrules,singular=serviceproxyrules,shortName=spr,categories=nodeproxy-all
// +kubebuilder:printcolumn:name="Cluster-IP",type=string,JSONPath=`.spec.clusterIPs[0]`
// +kubebuilder:printcolumn:name="Ports",type=string,JSONPath=`.spec.portSummary`
// +kubebuilder:printcolumn:name="Endpoints",type=integer,JSONPath=`.spec.endpointCount`
// +kubebuilder:printcolumn:name="Policies",type=string,JSONPath=`.spec.policySummary`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ServiceProxyRules struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the Service and the state of its endpoints.
	// +required
	Spec ServiceProxyRulesSpec `json:"spec"`
}

// ServiceProxyRulesList is a list of ServiceProxyRules.
// +kubebuilder:object:root=true
type ServiceProxyRulesList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ServiceProxyRules `json:"items"`
}
