package v1alpha1

// NodeProxyName is the only name that a NodeProxy may have.
const NodeProxyName = "cluster"

// FormatVersion is the newest version of the rendered objects that this
// release writes and reads.
const FormatVersion int32 = 1

// SchemaRevision counts the schemas of the kinds: a release whose CRDs differ in
// more than their descriptions from those of the release before has a higher one.
// It is in the annotation AnnotationSchemaRevision of each CRD, by a marker at
// each kind. A controller does not start on CRDs with a lower one than its own,
// because the API server would drop fields that it does not know.
const SchemaRevision = 3

// AnnotationSchemaRevision is on each CRD: its SchemaRevision. CRDs from before
// there were revisions have none.
const AnnotationSchemaRevision = "nodeproxy.io/schema-revision"

// FinalizerCleanup is on a NodeProxy while its removalPolicy is Cleanup, so that
// it stays until the nodes have removed their rules. The controller puts it on
// and takes it off.
const FinalizerCleanup = "nodeproxy.io/cleanup"

// TaintAgentNotReady is the key of the taint that keeps pods off a Node until its
// agent serves them. The kubelet puts it on when it registers
// (--register-with-taints), the controller takes it off and never puts it on.
const TaintAgentNotReady = "nodeproxy.io/agent-not-ready"

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
	// AnnotationRollout is on a NodeProxyRules: when, by whom and as which revision
	// its settings were given to the node, as JSON (SettingsGrant).
	AnnotationRollout = "nodeproxy.io/rollout"
	// AnnotationOverrides is on a ServiceProxyRules that policies shape: what they
	// make of the Service and by which of their generations, as JSON
	// (OverridesGrant).
	AnnotationOverrides = "nodeproxy.io/overrides"
	// AnnotationIgnoreUpdates is on rendered objects, with the value true. By it Argo
	// CD, if it watches them at all, goes by its configuration of what to ignore
	// (config/gitops), and refreshes no application for them.
	AnnotationIgnoreUpdates = "argocd.argoproj.io/ignore-resource-updates"
	// AnnotationAppliedResourceVersion is on an agent's Lease: the newest
	// ServiceProxyRules resourceVersion that the node has applied.
	AnnotationAppliedResourceVersion = "nodeproxy.io/applied-resource-version"
)

// ServedForAnother is in the message of a Service in status.refused that lacks an
// address and port because another Service has them. Any other Service can bring that
// about, whatever policies make of this one.
const ServedForAnother = "is served for Service"

// AgentLeaseSeconds is how long an agent's Lease may go without being renewed
// before the agent counts as not responding, in seconds.
const AgentLeaseSeconds = 90

// Condition types.
const (
	// ConditionReady summarises a NodeProxy or a policy.
	ConditionReady = "Ready"
	// ConditionAgentsDeployed says how the agents' DaemonSet does, on a NodeProxy
	// whose agents are Managed. It is False during every update; what is wrong
	// for longer makes Ready False, too.
	ConditionAgentsDeployed = "AgentsDeployed"
	// ConditionAccepted says that the agent understands its NodeProxyRules and
	// that the node's kernel can do what they ask; on a policy, that it makes sense.
	ConditionAccepted = "Accepted"
	// ConditionProgrammed says whether the kernel holds what is wanted.
	ConditionProgrammed = "Programmed"
	// ConditionModeFallback is True while another mode than the wanted one runs.
	ConditionModeFallback = "ModeFallback"
	// ConditionConflictingProxy is True while another proxy is active on the node.
	ConditionConflictingProxy = "ConflictingProxy"
	// ConditionConntrackPressure is True while the connection tracking table is
	// nearly full: from 80 % on, until 70 % or less are in use.
	ConditionConntrackPressure = "ConntrackPressure"
	// ConditionDrifted is True while somebody else keeps changing our rules.
	ConditionDrifted = "Drifted"
	// ConditionOverridden is True while stronger policies set fields of a policy.
	ConditionOverridden = "Overridden"
	// ConditionIneffective is True while an override of a ServiceProxyPolicy has
	// no effect on a Service that it selects.
	ConditionIneffective = "Ineffective"
	// ConditionStalled is True while a policy will not get ready by itself, and
	// absent otherwise, with the reason of Ready. Tools that read conditions as
	// kstatus does tell a policy that has failed from one in progress by it.
	ConditionStalled = "Stalled"
)

// Reasons of the conditions that are abnormal when True. A node on which one never
// was does not have it. While ConflictingProxy is True its reason is
// ReasonConflictingProxy.
const (
	// ReasonNoFallback: the mode that runs is the one that is asked for.
	ReasonNoFallback = "NoFallback"
	// ReasonKernelLacksMode: ModeFallback is True, since the node cannot run the
	// mode that is asked for.
	ReasonKernelLacksMode = "KernelLacksMode"
	// ReasonNoConflict: no other proxy is active any more.
	ReasonNoConflict = "NoConflict"
	// ReasonTableNearlyFull and ReasonTableHasRoom are those of ConntrackPressure.
	ReasonTableNearlyFull = "TableNearlyFull"
	ReasonTableHasRoom    = "TableHasRoom"
	// ReasonRulesUndone: Drifted is True.
	ReasonRulesUndone = "RulesUndone"
	// ReasonNoDrift: nobody undoes rules any more.
	ReasonNoDrift = "NoDrift"
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
	// ReasonRemoving: NodeProxy is being deleted with removalPolicy Cleanup; the
	// message says which nodes have not removed their rules yet.
	ReasonRemoving = "Removing"
	// ReasonInvalidSettings: the settings are refused; nodes keep what they have.
	ReasonInvalidSettings = "InvalidSettings"
	// ReasonAPIServerUnreachable: none of spec.apiServer.endpoints answers the
	// controller; the agents keep the addresses that they have.
	ReasonAPIServerUnreachable = "APIServerUnreachable"
)

// Reasons of Ready on a policy, beside ReasonNodesNotProgrammed.
const (
	// ReasonApplied (True): all that is selected has what the policies make of it.
	ReasonApplied = "Applied"
	// ReasonNothingSelected (True): no node, or no Service, is selected.
	ReasonNothingSelected = "NothingSelected"
	// ReasonProgressing: a change is on its way. Of a NodeProxy, too.
	ReasonProgressing = "Progressing"
	// ReasonPaused: a change is on its way, and spec.rollout.paused holds it. Of a
	// NodeProxy, too.
	ReasonPaused = "Paused"
	// ReasonRolloutStopped: a change has stopped by what it did, such as a node
	// that has missed its deadline; the message names it. Of a NodeProxy, too.
	ReasonRolloutStopped = "RolloutStopped"
	// ReasonNoNodeProxy: there is no NodeProxy, without which nothing is given to
	// nodes.
	ReasonNoNodeProxy = "NoNodeProxy"
)

// Reasons of Accepted on a policy, beside ReasonAccepted. Ready is False for the
// same.
const (
	// ReasonInvalidPolicy: a field of the policy makes no sense; the message names
	// it. Nothing of the policy is used: what it selects keeps what it has.
	ReasonInvalidPolicy = "InvalidPolicy"
	// ReasonInvalidResult: together with others the policy makes settings that
	// make no sense; the message names the field. Nodes keep what they have.
	ReasonInvalidResult = "InvalidResult"
)

// Reasons of Overridden and Ineffective, and of examples in the status of a policy.
const (
	// ReasonOverridden: stronger policies set fields of this one to something else.
	ReasonOverridden = "Overridden"
	// ReasonNotOverridden: no stronger policy does.
	ReasonNotOverridden = "NotOverridden"
	// ReasonIneffective: an override has no effect on some Service.
	ReasonIneffective = "Ineffective"
	// ReasonAllEffective: every override has an effect, or nothing to change.
	ReasonAllEffective = "AllEffective"
	// ReasonRefused: nodes refuse the Service as the policy shapes it.
	ReasonRefused = "Refused"
	// ReasonWaiting: a node's turn has not come.
	ReasonWaiting = "Waiting"
	// ReasonUpdating: a node has been given its settings, and does not report them
	// in force yet.
	ReasonUpdating = "Updating"
	// ReasonDeadlineMissed: a node does not report its settings in force in time.
	ReasonDeadlineMissed = "DeadlineMissed"
)

// Reasons of AgentsDeployed. But for the first two, Ready is False for the same
// reason.
const (
	// ReasonAgentsUpToDate (True): every node runs the agent that is wanted, and
	// it is ready.
	ReasonAgentsUpToDate = "AgentsUpToDate"
	// ReasonAgentsUpdating: pods are being replaced or made.
	ReasonAgentsUpdating = "AgentsUpdating"
	// ReasonNoAgentImage: nobody has said which image the agents have.
	ReasonNoAgentImage = "NoAgentImage"
	// ReasonDaemonSetRefused: the API server did not take the DaemonSet.
	ReasonDaemonSetRefused = "DaemonSetRefused"
	// ReasonAgentPodsFailing: the image of a pod cannot be had, or its agent keeps
	// ending; the update has stopped there.
	ReasonAgentPodsFailing = "AgentPodsFailing"
	// ReasonAgentPodsNotReady: for a minute a pod has had no node or its agent has
	// not been ready. Ready is False for the reason of the nodes first, if there is
	// one.
	ReasonAgentPodsNotReady = "AgentPodsNotReady"
)

// Parts of the message of the condition Programmed that are read again.
const (
	// MessageBut stands between what a kernel holds and what besides could not be done.
	MessageBut = "; but: "
	// MessageSilentSince begins that of ReasonAgentNotResponding, where a Lease tells
	// when the agent was last seen: the time follows in RFC 3339, and a space.
	MessageSilentSince = "no sign of life of the agent since "
)
