package v1alpha1

// NodeProxyName is the only name that a NodeProxy may have.
const NodeProxyName = "cluster"

// FormatVersion is the newest version of the rendered objects that this
// release writes and reads.
const FormatVersion int32 = 1

// Labels and annotations.
const (
	// LabelServiceNamespace is the namespace of the Service that a
	// ServiceProxyRules was rendered from.
	LabelServiceNamespace = "nodeproxy.io/service-namespace"
	// LabelServiceName is the name of the Service that a ServiceProxyRules was
	// rendered from.
	LabelServiceName = "nodeproxy.io/service-name"
	// AnnotationLastChangeTriggerTime is the newest
	// endpoints.kubernetes.io/last-change-trigger-time of the Service's
	// EndpointSlices (RFC 3339). A new value alone is no reason to write.
	AnnotationLastChangeTriggerTime = "nodeproxy.io/last-change-trigger-time"
	// AnnotationNodeAbsentSince is on a NodeProxyRules whose Node does not
	// exist: when the controller first saw that (RFC 3339). Ten minutes later
	// the object is deleted.
	AnnotationNodeAbsentSince = "nodeproxy.io/node-absent-since"
	// AnnotationAppliedResourceVersion is on an agent's Lease: the newest
	// ServiceProxyRules resourceVersion that the node has applied.
	AnnotationAppliedResourceVersion = "nodeproxy.io/applied-resource-version"
)

// Condition types.
const (
	// ConditionReady summarises a NodeProxy or a policy.
	ConditionReady = "Ready"
	// ConditionAccepted says that the agent understands its NodeProxyRules and
	// that the node's kernel can do what they ask.
	ConditionAccepted = "Accepted"
	// ConditionProgrammed says whether the kernel holds what is wanted.
	ConditionProgrammed = "Programmed"
	// ConditionModeFallback is True while another mode than the wanted one runs.
	ConditionModeFallback = "ModeFallback"
	// ConditionConflictingProxy is True while another proxy is active on the node.
	ConditionConflictingProxy = "ConflictingProxy"
	// ConditionConntrackPressure is True while the connection tracking table is
	// nearly full.
	ConditionConntrackPressure = "ConntrackPressure"
	// ConditionDrifted is True while somebody else keeps changing our rules.
	ConditionDrifted = "Drifted"
)

// Reasons of Accepted.
const (
	// ReasonAccepted: the object is understood and the kernel can do it.
	ReasonAccepted = "Accepted"
	// ReasonUnsupported: a field asks for what this agent or kernel cannot do;
	// the message names it. Rules stay as they are.
	ReasonUnsupported = "Unsupported"
	// ReasonUnknownFormat: formatVersion is newer than this agent. Rules stay
	// as they are.
	ReasonUnknownFormat = "UnknownFormat"
	// ReasonInvalid: a setting does not make sense; the message names it.
	ReasonInvalid = "Invalid"
)

// Reasons of Programmed, in the order in which the first that applies wins.
const (
	// ReasonAgentNotResponding (Unknown): the agent's Lease is stale.
	ReasonAgentNotResponding = "AgentNotResponding"
	// ReasonConflictingProxy (False): another proxy is active; nothing is touched.
	ReasonConflictingProxy = "ConflictingProxy"
	// ReasonRemoved (False): cleaned up after NodeProxy was deleted with
	// removalPolicy Cleanup.
	ReasonRemoved = "Removed"
	// ReasonFailed (False): the last apply failed, or Accepted is False.
	ReasonFailed = "Failed"
	// ReasonPending (False): no complete set since the start, or the oldest
	// unapplied change is older than 10 s.
	ReasonPending = "Pending"
	// ReasonAuditDiffers (False): enforcement is Audit and the kernel differs.
	ReasonAuditDiffers = "AuditDiffers"
	// ReasonAuditInSync (True): enforcement is Audit and the kernel agrees.
	ReasonAuditInSync = "AuditInSync"
	// ReasonSomeServicesRefused (True): all but the Services named in
	// status.refused are programmed.
	ReasonSomeServicesRefused = "SomeServicesRefused"
	// ReasonHeld (True): for 10 s something has vanished without being released
	// or the list is unconfirmed; rules stay.
	ReasonHeld = "Held"
	// ReasonProgrammed (True): the kernel holds what is wanted.
	ReasonProgrammed = "Programmed"
)

// Reasons of Ready on a NodeProxy.
const (
	// ReasonAllProgrammed: every node's kernel holds what is wanted.
	ReasonAllProgrammed = "AllProgrammed"
	// ReasonNoNodes: there is no Linux Node.
	ReasonNoNodes = "NoNodes"
	// ReasonNodesNotProgrammed: some node's kernel does not hold what is wanted.
	ReasonNodesNotProgrammed = "NodesNotProgrammed"
	// ReasonInvalidSettings: the settings are refused; nodes keep what they have.
	ReasonInvalidSettings = "InvalidSettings"
)
