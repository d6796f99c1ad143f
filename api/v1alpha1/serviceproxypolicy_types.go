package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServiceProxyPolicySpec overrides how the selected Services are proxied.
type ServiceProxyPolicySpec struct {
	// priority is the number that ranks policies that set the same field of a Service: the
	// highest wins; ties go to the lower name. It may be negative. Default: 0. Source: user.
	// +kubebuilder:validation:Minimum=-2147483648
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Priority *int32 `json:"priority,omitempty"`

	// namespaceSelector selects namespaces by label; {} selects all and must be explicit.
	// Source: user.
	// +required
	NamespaceSelector LabelSelector `json:"namespaceSelector"`

	// serviceSelector selects Services by label; {} selects all and must be explicit. Source:
	// user.
	// +required
	ServiceSelector LabelSelector `json:"serviceSelector"`

	// overrides are what the policy sets. Absent fields come from other policies, then from
	// the Service. Source: user.
	// +required
	Overrides ServiceOverrides `json:"overrides"`
}

// ServiceOverrides replace fields of Services when rendered; the Services are not changed.
type ServiceOverrides struct {
	// loadBalancerSourceRanges are the client ranges allowed to use the load balancer's
	// addresses, instead of the Service's. 0.0.0.0/0 and ::/0 lift a restriction. It is
	// Ineffective for Services of a type other than LoadBalancer. Default: the Service's.
	// Source: user.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.size() > 0`,message=`overrides.loadBalancerSourceRanges must contain at least one CIDR: remove it to keep the Service's own ranges, or set 0.0.0.0/0 and ::/0 to allow all clients`
	// +kubebuilder:validation:XValidation:rule=`self.all(c, isCIDR(c))`,message=`overrides.loadBalancerSourceRanges must contain CIDRs such as 198.51.100.0/24 or 2001:db8::/64`
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`

	// nodePorts Disabled stops programming node ports, except health check node ports; a load
	// balancer that sends to node ports then no longer reaches the Service. Enabled keeps the
	// Service's node ports even if a policy of lower priority disables them. Default: Enabled. Source: user.
	// +optional
	NodePorts *Toggle `json:"nodePorts,omitempty"`

	// externalIPs Disabled stops programming the Services' spec.externalIPs. Enabled keeps
	// them even if a policy of lower priority disables them. Default: Enabled. Source: user.
	// +optional
	ExternalIPs *Toggle `json:"externalIPs,omitempty"`

	// internalTrafficPolicy, for cluster IPs: Cluster or Local. Default: the Service's. Source:
	// user.
	// +optional
	InternalTrafficPolicy *TrafficPolicy `json:"internalTrafficPolicy,omitempty"`

	// externalTrafficPolicy is Cluster or Local, for node ports, external IPs and load-balancer
	// IPs. Local is Ineffective for a Service of type LoadBalancer without healthCheckNodePort,
	// whose load balancer would keep sending to nodes that drop the traffic, and for a Service
	// without any external address or port. With Cluster, a Service's healthCheckNodePort is
	// still served, so that its load balancer finds nodes. Default: the Service's. Source:
	// user.
	// +optional
	ExternalTrafficPolicy *TrafficPolicy `json:"externalTrafficPolicy,omitempty"`

	// sessionAffinity sends each client's connections to one endpoint. Default: the Service's.
	// Source: user.
	// +optional
	SessionAffinity *SessionAffinityOverride `json:"sessionAffinity,omitempty"`

	// ipvsScheduler is the Services' IPVS scheduler on nodes in mode IPVS: rr, wrr, lc, wlc,
	// lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh or twos. Default: each node's. Source: user.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule=`self in ['rr', 'wrr', 'lc', 'wlc', 'lblc', 'lblcr', 'dh', 'sh', 'sed', 'nq', 'fo', 'ovf', 'mh', 'twos']`,message=`overrides.ipvsScheduler must be a Linux IPVS scheduler: rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh or twos`
	IPVSScheduler *string `json:"ipvsScheduler,omitempty"`

	// serving is Userspace to have the agents themselves serve the Services: they retry endpoints
	// that do not accept, and endpoints see the node's address as their client. Kernel leaves them to
	// the node's mode even if a policy of lower priority chooses Userspace. SCTP stays with the
	// kernel. Default: Kernel. Source: user.
	// +optional
	Serving *Serving `json:"serving,omitempty"`
}

// SessionAffinityOverride sends each client's connections to one endpoint.
type SessionAffinityOverride struct {
	// clientIPTimeoutSeconds is how long a client without new connections keeps its endpoint,
	// in seconds, 1 to 86400. Source: user.
	// +required
	// +kubebuilder:validation:XValidation:rule=`self >= 1 && self <= 86400`,message=`overrides.sessionAffinity.clientIPTimeoutSeconds must be 1 to 86400 (a day)`
	ClientIPTimeoutSeconds int32 `json:"clientIPTimeoutSeconds"`
}

// SetAsWhole marks a struct that policies set and override as a whole.
func (*SessionAffinityOverride) SetAsWhole() {}

// ServiceProxyPolicyStatus is the progress of a policy.
type ServiceProxyPolicyStatus struct {
	// conditions: Ready is True if all selected Services are rendered with the overrides that
	// result from all policies and no node rejects them because of that, or if no Service is
	// selected. Accepted is False if the policy is ignored; the message explains why. Overridden is
	// True while stronger policies, named in the message, set fields of this one. Ineffective
	// is True while an override has no effect on a Service; the message states which and why.
	// While Ready is not True, either Stalled is, which takes intervention, or Reconciling; neither
	// is while paused. Source: controller.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status describes, or -1 if the
	// controller has not seen the object. Source: controller.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// services is the number of proxied Services that the policy selects. Source: controller.
	// +optional
	Services int32 `json:"services"`

	// applied is the number of them with the current overrides. Source: controller.
	// +optional
	Applied int32 `json:"applied"`

	// ineffective is the number of them on which an override has no effect. Source: controller.
	// +optional
	Ineffective int32 `json:"ineffective"`

	// examples are up to ten Services that nodes reject or on which an override has no effect.
	// Source: controller.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []ServiceExample `json:"examples,omitempty"`
}

// ServiceExample is a Service and why it is listed.
type ServiceExample struct {
	// namespace of the Service. Source: controller.
	// +required
	Namespace string `json:"namespace"`

	// name of the Service. Source: controller.
	// +required
	Name string `json:"name"`

	// reason is Rejected (by nodes) or Ineffective. Source: controller.
	// +required
	Reason string `json:"reason"`

	// message explains the reason. Source: controller.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// ServiceProxyPolicy overrides how the selected Services are proxied. Staged rollout: a change
// goes Service by Service and halts if nodes reject one.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=serviceproxypolicies,singular=serviceproxypolicy,shortName=spp,categories=nodeproxy-all
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

	// spec is the desired configuration.
	// +required
	Spec ServiceProxyPolicySpec `json:"spec"`

	// status is the progress of the policy.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status ServiceProxyPolicyStatus `json:"status,omitzero"`
}

// ServiceProxyPolicyList is a list of ServiceProxyPolicy.
// +kubebuilder:object:root=true
type ServiceProxyPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ServiceProxyPolicy `json:"items"`
}
