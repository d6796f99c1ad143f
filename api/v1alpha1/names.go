package v1alpha1

// NodeProxyName is the only valid name of a NodeProxy.
const NodeProxyName = "cluster"

// FormatVersion is the newest version of rendered objects that this release writes and reads.
const FormatVersion int32 = 1

// SchemaRevision counts the schemas of the kinds: it increases if a release's CRDs differ from
// those of the release before in more than descriptions. A marker at each kind writes it to
// the CRD's annotation AnnotationSchemaRevision. A controller does not start with CRDs of a
// lower revision than its own, because the API server would drop fields it does not know.
const SchemaRevision = 3

// AnnotationSchemaRevision on a CRD is its SchemaRevision. CRDs older than revisions lack it.
const AnnotationSchemaRevision = "nodeproxy.io/schema-revision"

// FinalizerCleanup is on a NodeProxy while its removalPolicy is Cleanup: the object remains
// until the nodes have removed their rules. The controller adds and removes it.
const FinalizerCleanup = "nodeproxy.io/cleanup"

// TaintAgentNotReady is the key of the taint that keeps pods off a Node until its agent is
// ready. The kubelet adds it when it registers (--register-with-taints); the controller only
// removes it.
const TaintAgentNotReady = "nodeproxy.io/agent-not-ready"

// Labels and annotations.
const (
	// LabelServiceNamespace is the namespace of the Service that a ServiceProxyRules was
	// rendered from.
	LabelServiceNamespace = "nodeproxy.io/service-namespace"
	// LabelServiceName is the name of the Service that a ServiceProxyRules was rendered from.
	LabelServiceName = "nodeproxy.io/service-name"
	// AnnotationLastChangeTriggerTime is the newest
	// endpoints.kubernetes.io/last-change-trigger-time of the Service's EndpointSlices (RFC
	// 3339). A new value alone causes no write.
	AnnotationLastChangeTriggerTime = "nodeproxy.io/last-change-trigger-time"
	// AnnotationNodeAbsentSince is on a NodeProxyRules without a Node: when the controller
	// first saw that (RFC 3339). The object is deleted ten minutes later.
	AnnotationNodeAbsentSince = "nodeproxy.io/node-absent-since"
	// AnnotationRollout on a NodeProxyRules records when, why and in which revision the node
	// was given its settings, as JSON (SettingsGrant).
	AnnotationRollout = "nodeproxy.io/rollout"
	// AnnotationOverrides on a ServiceProxyRules records what policies made of the Service,
	// and which of their generations, as JSON (OverridesGrant).
	AnnotationOverrides = "nodeproxy.io/overrides"
	// AnnotationIgnoreUpdates is on rendered objects, with the value true. If Argo CD watches
	// them at all, it then applies its configuration of ignored fields (config/gitops) and
	// refreshes no application for them.
	AnnotationIgnoreUpdates = "argocd.argoproj.io/ignore-resource-updates"
	// AnnotationAppliedResourceVersion on an agent's Lease is the newest ServiceProxyRules
	// resourceVersion that the node has applied.
	AnnotationAppliedResourceVersion = "nodeproxy.io/applied-resource-version"
)

// ServedForAnother is part of the message about a Service in status.rejected that lacks an
// address and port because another Service has them. Any other Service can cause that,
// whatever policies make of this one.
const ServedForAnother = "is served for Service"

// AgentLeaseSeconds is how long an agent's Lease may go without renewal before the agent
// counts as not responding, in seconds.
const AgentLeaseSeconds = 90

// Condition types.
const (
	// ConditionReady summarizes a NodeProxy or a policy.
	ConditionReady = "Ready"
	// ConditionAgentsDeployed on a NodeProxy with Managed agents is the state of their
	// DaemonSet. It is False during every update; a lasting problem also makes Ready False.
	ConditionAgentsDeployed = "AgentsDeployed"
	// ConditionAccepted: the agent understands its NodeProxyRules and the node's kernel
	// supports what they require; on a policy: it is valid.
	ConditionAccepted = "Accepted"
	// ConditionProgrammed is whether the kernel has the desired rules.
	ConditionProgrammed = "Programmed"
	// ConditionModeFallback is True while another mode than the desired one is active.
	ConditionModeFallback = "ModeFallback"
	// ConditionConflictingProxy is True while another proxy is active on the node.
	ConditionConflictingProxy = "ConflictingProxy"
	// ConditionConntrackPressure is True while the connection tracking table is nearly full:
	// from 80 % on, until at most 70 % are used.
	ConditionConntrackPressure = "ConntrackPressure"
	// ConditionDrifted is True while another program keeps changing our rules.
	ConditionDrifted = "Drifted"
	// ConditionOverridden is True while stronger policies set fields of a policy.
	ConditionOverridden = "Overridden"
	// ConditionIneffective is True while an override of a ServiceProxyPolicy has no effect on
	// a selected Service.
	ConditionIneffective = "Ineffective"
	// ConditionStalled is True while Ready cannot become True without intervention, with
	// Ready's reason, and absent otherwise. By it, tools that follow kstatus distinguish
	// failed objects from those in progress.
	ConditionStalled = "Stalled"
)

// Reasons of the conditions that indicate a problem when True. A node has such a condition
// only after it was True once. While ConflictingProxy is True, its reason is
// ReasonConflictingProxy.
const (
	// ReasonNoFallback: the desired mode is active.
	ReasonNoFallback = "NoFallback"
	// ReasonKernelLacksMode: ModeFallback is True because the node does not support the
	// desired mode.
	ReasonKernelLacksMode = "KernelLacksMode"
	// ReasonNoConflict: no other proxy is active anymore.
	ReasonNoConflict = "NoConflict"
	// ReasonTableNearlyFull and ReasonTableHasRoom are the reasons of ConntrackPressure.
	ReasonTableNearlyFull = "TableNearlyFull"
	ReasonTableHasRoom    = "TableHasRoom"
	// ReasonRulesModified: Drifted is True.
	ReasonRulesModified = "RulesModified"
	// ReasonNoDrift: no program changes our rules anymore.
	ReasonNoDrift = "NoDrift"
)

// Reasons of Accepted.
const (
	// ReasonAccepted: the object is valid, and the kernel supports it.
	ReasonAccepted = "Accepted"
	// ReasonUnsupported: this agent or kernel does not support a field, which the message
	// names. Rules remain unchanged.
	ReasonUnsupported = "Unsupported"
	// ReasonUnknownFormat: formatVersion is newer than this agent. Rules remain unchanged.
	ReasonUnknownFormat = "UnknownFormat"
	// ReasonInvalid: a setting, which the message names, is invalid.
	ReasonInvalid = "Invalid"
)

// Reasons of Programmed; the first that applies wins.
const (
	// ReasonAgentNotResponding (Unknown): the agent's Lease is stale.
	ReasonAgentNotResponding = "AgentNotResponding"
	// ReasonConflictingProxy (False): another proxy is active; the agent writes nothing.
	ReasonConflictingProxy = "ConflictingProxy"
	// ReasonRemoved (False): the rules were removed after NodeProxy was deleted with
	// removalPolicy Cleanup.
	ReasonRemoved = "Removed"
	// ReasonFailed (False): the last apply failed, or Accepted is False.
	ReasonFailed = "Failed"
	// ReasonPending (False): no complete set of objects since startup, or the oldest pending
	// change is older than 10 s.
	ReasonPending = "Pending"
	// ReasonAuditDiffers (False): enforcement is Audit and the kernel differs.
	ReasonAuditDiffers = "AuditDiffers"
	// ReasonAuditInSync (True): enforcement is Audit and the kernel does not differ.
	ReasonAuditInSync = "AuditInSync"
	// ReasonSomeServicesRejected (True): all but the Services in status.rejected are programmed.
	ReasonSomeServicesRejected = "SomeServicesRejected"
	// ReasonRetained (True): for 10 s an object has been missing without having been released, or
	// the list has not been confirmed; its rules are retained.
	ReasonRetained = "Retained"
	// ReasonProgrammed (True): the kernel has the desired rules.
	ReasonProgrammed = "Programmed"
)

// Reasons of Ready on a NodeProxy.
const (
	// ReasonAllProgrammed: every node is programmed.
	ReasonAllProgrammed = "AllProgrammed"
	// ReasonNoNodes: there is no Linux Node.
	ReasonNoNodes = "NoNodes"
	// ReasonNodesNotProgrammed: at least one node is not programmed.
	ReasonNodesNotProgrammed = "NodesNotProgrammed"
	// ReasonRemoving: NodeProxy is being deleted with removalPolicy Cleanup; the message names
	// nodes that still have rules.
	ReasonRemoving = "Removing"
	// ReasonInvalidSettings: the settings are invalid; nodes keep their current ones.
	ReasonInvalidSettings = "InvalidSettings"
	// ReasonAPIServerUnreachable: the controller reaches none of spec.apiServer.endpoints;
	// agents keep their current addresses.
	ReasonAPIServerUnreachable = "APIServerUnreachable"
)

// Reasons of Ready on a policy, in addition to ReasonNodesNotProgrammed.
const (
	// ReasonApplied (True): everything selected has what results from the policies.
	ReasonApplied = "Applied"
	// ReasonNothingSelected (True): no node, or no Service, is selected.
	ReasonNothingSelected = "NothingSelected"
	// ReasonProgressing: a rollout is in progress. Also of a NodeProxy.
	ReasonProgressing = "Progressing"
	// ReasonPaused: spec.rollout.paused holds a rollout. Also of a NodeProxy.
	ReasonPaused = "Paused"
	// ReasonRolloutHalted: a rollout has halted because of its effect, such as a node that
	// missed its deadline; the message names it. Also of a NodeProxy.
	ReasonRolloutHalted = "RolloutHalted"
	// ReasonNoNodeProxy: there is no NodeProxy, without which nodes are given nothing.
	ReasonNoNodeProxy = "NoNodeProxy"
)

// Reasons of Accepted on a policy, in addition to ReasonAccepted. Ready is False with the
// same reason.
const (
	// ReasonInvalidPolicy: a field of the policy, which the message names, is invalid. Nothing
	// of the policy is used: what it selects remains unchanged.
	ReasonInvalidPolicy = "InvalidPolicy"
	// ReasonInvalidResult: together with others the policy gives invalid settings; the message
	// names the field. Nodes keep their current settings.
	ReasonInvalidResult = "InvalidResult"
)

// Reasons of Overridden and Ineffective, and of examples in a policy's status.
const (
	// ReasonOverridden: stronger policies set fields of this one differently.
	ReasonOverridden = "Overridden"
	// ReasonNotOverridden: no stronger policy does.
	ReasonNotOverridden = "NotOverridden"
	// ReasonIneffective: an override has no effect on a Service.
	ReasonIneffective = "Ineffective"
	// ReasonAllEffective: every override has an effect, or nothing to change.
	ReasonAllEffective = "AllEffective"
	// ReasonRejected: nodes reject the Service as shaped by the policy.
	ReasonRejected = "Rejected"
	// ReasonWaiting: the rollout has not reached the node.
	ReasonWaiting = "Waiting"
	// ReasonUpdating: the node has been given its settings and has not yet reported them as
	// applied.
	ReasonUpdating = "Updating"
	// ReasonDeadlineMissed: the node did not report its settings as applied in time.
	ReasonDeadlineMissed = "DeadlineMissed"
)

// Reasons of AgentsDeployed. Except for the first two, Ready is False with the same reason.
const (
	// ReasonAgentsUpToDate (True): every node runs the desired agent, and it is ready.
	ReasonAgentsUpToDate = "AgentsUpToDate"
	// ReasonAgentsUpdating: pods are being created or replaced.
	ReasonAgentsUpdating = "AgentsUpdating"
	// ReasonNoAgentImage: no agent image is configured.
	ReasonNoAgentImage = "NoAgentImage"
	// ReasonDaemonSetDenied: the API server rejects the DaemonSet.
	ReasonDaemonSetDenied = "DaemonSetDenied"
	// ReasonAgentPodsFailing: a pod's image cannot be pulled, or its agent keeps crashing; the
	// update has halted there.
	ReasonAgentPodsFailing = "AgentPodsFailing"
	// ReasonAgentPodsNotReady: for a minute a pod has been unscheduled or its agent not ready.
	// If nodes have a reason of their own, Ready shows that one.
	ReasonAgentPodsNotReady = "AgentPodsNotReady"
)

// Parts of the message of the condition Programmed that programs parse.
const (
	// MessageBut separates what the kernel has from what could not be done.
	MessageBut = "; but: "
	// MessageSilentSince starts the message of ReasonAgentNotResponding if a Lease shows when
	// the agent was last seen: the time in RFC 3339 and a space follow.
	MessageSilentSince = "no sign of life of the agent since "
)
