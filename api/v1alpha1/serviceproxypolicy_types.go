package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServiceProxyPolicySpec overrides how the Services that it selects are proxied.
type ServiceProxyPolicySpec struct {
	// priority is a number that decides where several policies that select a
	// Service set the same field: the highest wins, of equal ones that of the
	// policy with the lower name, never the older one. It may be negative.
	// Default: 0. Source: people or GitOps.
	// +kubebuilder:validation:Minimum=-2147483648
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Priority *int32 `json:"priority,omitempty"`

	// namespaceSelector selects namespaces by the labels of their Namespace; {}
	// selects all, and has to be written. Source: people or GitOps.
	// +required
	NamespaceSelector LabelSelector `json:"namespaceSelector"`

	// serviceSelector selects Services in these namespaces by their labels; {}
	// selects all, and has to be written. Source: people or GitOps.
	// +required
	ServiceSelector LabelSelector `json:"serviceSelector"`

	// overrides are what the policy sets; what is absent it leaves to other
	// policies, then to the Service. Source: people or GitOps.
	// +required
	Overrides ServiceOverrides `json:"overrides"`
}

// ServiceOverrides take the place of what Services say. The Services themselves
// are not changed.
type ServiceOverrides struct {
	// loadBalancerSourceRanges are the client ranges that may use the load
	// balancer's addresses, instead of those of the Service. 0.0.0.0/0 and ::/0
	// lift a restriction. Services of another type than LoadBalancer are named as
	// Ineffective. Default (absent): the Service's. Source: people or GitOps.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.size() > 0`,message=`overrides.loadBalancerSourceRanges must hold at least one CIDR: leave it out to keep the Service's own, or write 0.0.0.0/0 and ::/0 to let everybody in`
	// +kubebuilder:validation:XValidation:rule=`self.all(c, isCIDR(c))`,message=`overrides.loadBalancerSourceRanges must hold CIDRs such as 198.51.100.0/24 or 2001:db8::/64`
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`

	// nodePorts Disabled stops programming node ports; a load balancer that sends
	// to node ports then reaches the Service no more. Health check node ports stay.
	// Enabled leaves node ports to the Service, against weaker policies. Default
	// (absent): Enabled. Source: people or GitOps.
	// +optional
	NodePorts *Toggle `json:"nodePorts,omitempty"`

	// externalIPs Disabled stops programming spec.externalIPs of the Services.
	// Enabled leaves them to the Service, against weaker policies. Default
	// (absent): Enabled. Source: people or GitOps.
	// +optional
	ExternalIPs *Toggle `json:"externalIPs,omitempty"`

	// internalTrafficPolicy is Cluster or Local, for cluster IPs. Default
	// (absent): the Service's. Source: people or GitOps.
	// +optional
	InternalTrafficPolicy *TrafficPolicy `json:"internalTrafficPolicy,omitempty"`

	// externalTrafficPolicy is Cluster or Local, for node ports, external IPs and
	// load balancer IPs. Local has no effect on a Service of type LoadBalancer
	// without healthCheckNodePort, since its load balancer would go on sending to
	// nodes that drop; neither has it where nothing from outside can arrive. Such
	// Services are named as Ineffective. With Cluster the healthCheckNodePort of a
	// Service is answered as before, so that its load balancer finds nodes.
	// Default (absent): the Service's. Source: people or GitOps.
	// +optional
	ExternalTrafficPolicy *TrafficPolicy `json:"externalTrafficPolicy,omitempty"`

	// sessionAffinity sends one client's connections to one endpoint. Default
	// (absent): the Service's. Source: people or GitOps.
	// +optional
	SessionAffinity *SessionAffinityOverride `json:"sessionAffinity,omitempty"`

	// ipvsScheduler is the IPVS scheduler of the Services on nodes in mode IPVS:
	// rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh or twos. Default
	// (absent): that of each node. Source: people or GitOps.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule=`self in ['rr', 'wrr', 'lc', 'wlc', 'lblc', 'lblcr', 'dh', 'sh', 'sed', 'nq', 'fo', 'ovf', 'mh', 'twos']`,message=`overrides.ipvsScheduler must be one that Linux has: rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh or twos`
	IPVSScheduler *string `json:"ipvsScheduler,omitempty"`
}

// SessionAffinityOverride sends one client's connections to one endpoint.
type SessionAffinityOverride struct {
	// clientIPTimeoutSeconds is how long a client that opens no connection keeps
	// its endpoint, in seconds, 1 to 86400. Source: people or GitOps.
	// +required
	// +kubebuilder:validation:XValidation:rule=`self >= 1 && self <= 86400`,message=`overrides.sessionAffinity.clientIPTimeoutSeconds must be 1 to 86400 (a day)`
	ClientIPTimeoutSeconds int32 `json:"clientIPTimeoutSeconds"`
}

// ServiceProxyPolicyStatus is how far a policy has come.
type ServiceProxyPolicyStatus struct {
	// conditions: Ready is True when every selected Service is rendered with what
	// the policies make of it and no node refuses it for that, or where no Service
	// is selected. Accepted is False when nothing of the policy is used, and says
	// why. Overridden is True while stronger policies set fields of this one, and
	// names them. Ineffective is True while an override has no effect on some
	// Service, and says which and why. Stalled is there, and True, while the
	// policy will not get ready by itself. Source: the controller.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status is about.
	// Source: the controller.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// services is how many proxied Services the policy selects. Source: the
	// controller.
	// +optional
	Services int32 `json:"services"`

	// applied is how many of them are rendered with what the policies make of
	// them. Source: the controller, from ServiceProxyRules.
	// +optional
	Applied int32 `json:"applied"`

	// ineffective is how many of them an override of this policy has no effect
	// on. Source: the controller.
	// +optional
	Ineffective int32 `json:"ineffective"`

	// examples are up to ten Services that nodes refuse, or that an override has
	// no effect on, with the reason. Source: the controller.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []ServiceExample `json:"examples,omitempty"`
}

// ServiceExample names a Service, and what is to be said of it.
type ServiceExample struct {
	// namespace is that of the Service. Source: the controller.
	// +required
	Namespace string `json:"namespace"`

	// name is that of the Service. Source: the controller.
	// +required
	Name string `json:"name"`

	// reason is Refused (by nodes) or Ineffective. Source: the controller.
	// +required
	Reason string `json:"reason"`

	// message says more. Source: the controller.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// ServiceProxyPolicy overrides how the Services that it selects are proxied. A
// change of it goes from Service to Service, and stops when nodes refuse one.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=serviceproxypolicies,singular=serviceproxypolicy,shortName=spp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.status.services`
// +kubebuilder:printcolumn:name="Applied",type=integer,JSONPath=`.status.applied`
// +kubebuilder:printcolumn:name="Ineffective",type=integer,JSONPath=`.status.ineffective`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ServiceProxyPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what people ask for.
	// +required
	Spec ServiceProxyPolicySpec `json:"spec"`

	// status is how far it has come.
	// +optional
	Status ServiceProxyPolicyStatus `json:"status,omitzero"`
}

// ServiceProxyPolicyList is a list of ServiceProxyPolicy.
// +kubebuilder:object:root=true
type ServiceProxyPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the objects.
	Items []ServiceProxyPolicy `json:"items"`
}
