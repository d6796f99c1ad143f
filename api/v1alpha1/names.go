package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strings"
)

// NodeProxyName is the only valid name of a NodeProxy.
const NodeProxyName = "cluster"

// FormatVersion is the newest version of rendered objects that this release writes and reads.
const FormatVersion int32 = 2

// SchemaRevision is the revision of the CRDs' schemas. It increases with each release whose
// schemas differ from the previous release's in more than descriptions. A marker on each kind
// writes it to AnnotationSchemaRevision of the CRD. A controller does not start with CRDs of an
// older revision, because the API server would drop fields that they lack.
const SchemaRevision = 3

// AnnotationSchemaRevision is a CRD's SchemaRevision; the oldest CRDs have none.
const AnnotationSchemaRevision = "nodeproxy.io/schema-revision"

// FinalizerCleanup is on a NodeProxy with removalPolicy Cleanup: the object remains until the
// nodes have removed their rules. The controller adds and removes it.
const FinalizerCleanup = "nodeproxy.io/cleanup"

// TaintAgentNotReady is the key of the taint that keeps pods off a Node until its agent is
// ready. The kubelet adds it when it registers (--register-with-taints); the controller only
// removes it.
const TaintAgentNotReady = "nodeproxy.io/agent-not-ready"

// Annotations.
const (
	// AnnotationLastChangeTriggerTime is the newest
	// endpoints.kubernetes.io/last-change-trigger-time of the Service's EndpointSlices (RFC
	// 3339). A new value alone causes no write.
	AnnotationLastChangeTriggerTime = "nodeproxy.io/last-change-trigger-time"
	// AnnotationWritten on a rendered object is when the controller last wrote it (RFC 3339), unless
	// AnnotationLastChangeTriggerTime is about the same.
	AnnotationWritten = "nodeproxy.io/written"
	// AnnotationNodeAbsentSince is when the controller first found that a NodeProxyRules has no
	// Node (RFC 3339). The object is deleted ten minutes later.
	AnnotationNodeAbsentSince = "nodeproxy.io/node-absent-since"
	// AnnotationRollout on a NodeProxyRules records when, why and in which revision the node
	// was given its settings, as JSON (SettingsGrant).
	AnnotationRollout = "nodeproxy.io/rollout"
	// AnnotationOverrides on a ServiceProxyRules records the policies' overrides of the Service
	// and the generations that caused them, as JSON (OverridesGrant).
	AnnotationOverrides = "nodeproxy.io/overrides"
	// AnnotationAppliedResourceVersion on an agent's Lease is the newest ServiceProxyRules
	// resourceVersion that the node has applied.
	AnnotationAppliedResourceVersion = "nodeproxy.io/applied-resource-version"
)

// ServedForAnother is part of the message about a Service in status.rejected that lacks an
// address and port because another Service has them. Policies are not the cause.
const ServedForAnother = "is served for Service"

// AgentLeaseSeconds after the last renewal of its Lease, an agent counts as not responding.
const AgentLeaseSeconds = 90

// Condition types.
const (
	// ConditionReady summarizes a NodeProxy or a policy.
	ConditionReady = "Ready"
	// ConditionAgentsDeployed on a NodeProxy with Managed agents is the state of their
	// DaemonSet. It is False during every update; a lasting problem also makes Ready False.
	ConditionAgentsDeployed = "AgentsDeployed"
	// ConditionAccepted: agent and kernel support the NodeProxyRules; on a policy: it is valid.
	ConditionAccepted = "Accepted"
	// ConditionProgrammed is whether the kernel has the desired rules.
	ConditionProgrammed = "Programmed"
	// ConditionModeFallback is True while another mode than the desired one is active.
	ConditionModeFallback = "ModeFallback"
	// ConditionConflictingProxy is True while another proxy is active on the node.
	ConditionConflictingProxy = "ConflictingProxy"
	// ConditionConntrackPressure becomes True when the connection tracking table is 80% full,
	// and False when it is at most 70% full.
	ConditionConntrackPressure = "ConntrackPressure"
	// ConditionDrifted is True while another program keeps changing our rules.
	ConditionDrifted = "Drifted"
	// ConditionOverridden is True while stronger policies set fields of a policy.
	ConditionOverridden = "Overridden"
	// ConditionIneffective is True while an override has no effect on a selected Service.
	ConditionIneffective = "Ineffective"
	// ConditionStalled is present and True while Ready cannot become True without intervention, and
	// ConditionReconciling while it is otherwise not True, unless that is paused. They have Ready's
	// reason. Tools that follow kstatus use them to distinguish failure from progress.
	ConditionStalled     = "Stalled"
	ConditionReconciling = "Reconciling"
)

// Reasons of the conditions that indicate a problem when True. A node has such a condition
// only after it was True once. While ConflictingProxy is True, its reason is
// ReasonConflictingProxy.
const (
	ReasonNoFallback = "NoFallback"
	// ReasonKernelLacksMode: the node does not support the desired mode.
	ReasonKernelLacksMode = "KernelLacksMode"
	ReasonNoConflict      = "NoConflict"
	ReasonTableNearlyFull = "TableNearlyFull"
	ReasonTableHasRoom    = "TableHasRoom"
	ReasonRulesModified   = "RulesModified"
	ReasonNoDrift         = "NoDrift"
)

// Reasons of Accepted.
const (
	// ReasonAccepted: the object is valid, and the kernel supports it.
	ReasonAccepted = "Accepted"
	// ReasonUnsupported: agent or kernel lack support for the field in the message. Rules stay.
	ReasonUnsupported = "Unsupported"
	// ReasonUnknownFormat: formatVersion is newer than this agent. Rules stay.
	ReasonUnknownFormat = "UnknownFormat"
	// ReasonInvalid: the setting in the message is invalid.
	ReasonInvalid = "Invalid"
)

// Reasons of Programmed; the first that applies wins.
const (
	// ReasonAgentNotResponding (Unknown): the agent's Lease is stale.
	ReasonAgentNotResponding = "AgentNotResponding"
	// ReasonConflictingProxy (False): another proxy is active; the agent writes nothing.
	ReasonConflictingProxy = "ConflictingProxy"
	// ReasonRemoved (False): the rules were removed, as removalPolicy Cleanup demands.
	ReasonRemoved = "Removed"
	// ReasonFailed (False): the last apply failed, or Accepted is False.
	ReasonFailed = "Failed"
	// ReasonPending (False): the set of objects is not yet complete, or a change is pending for
	// 10 s.
	ReasonPending = "Pending"
	// ReasonAuditDiffers (False): enforcement is Audit and the kernel differs.
	ReasonAuditDiffers = "AuditDiffers"
	// ReasonAuditInSync (True): enforcement is Audit and the kernel does not differ.
	ReasonAuditInSync = "AuditInSync"
	// ReasonSomeServicesRejected (True): all but the Services in status.rejected are programmed.
	ReasonSomeServicesRejected = "SomeServicesRejected"
	// ReasonRetained (True): for 10 s an object has been missing without having been released,
	// or the list has not been confirmed; its rules are retained.
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
	// ReasonRemoving: Cleanup is in progress; the message names nodes that still have rules.
	ReasonRemoving = "Removing"
	// ReasonInvalidSettings: the settings are invalid; nodes retain their current ones.
	ReasonInvalidSettings = "InvalidSettings"
	// ReasonAPIServerUnreachable: no address in spec.apiServer.endpoints answers.
	ReasonAPIServerUnreachable = "APIServerUnreachable"
)

// Reasons of Ready on a policy, in addition to ReasonNodesNotProgrammed.
const (
	// ReasonApplied (True): the result of the policies is applied to everything selected.
	ReasonApplied = "Applied"
	// ReasonNothingSelected (True): no node, or no Service, is selected.
	ReasonNothingSelected = "NothingSelected"
	// ReasonProgressing: a rollout is in progress. Also of a NodeProxy.
	ReasonProgressing = "Progressing"
	// ReasonPaused: spec.rollout.paused suspends a rollout. Also of a NodeProxy.
	ReasonPaused = "Paused"
	// ReasonRolloutHalted: a rollout has halted because of its effect, such as a node that
	// missed its deadline, which the message names. Also of a NodeProxy.
	ReasonRolloutHalted = "RolloutHalted"
	// ReasonNoNodeProxy: there is no NodeProxy, so nothing is rendered.
	ReasonNoNodeProxy = "NoNodeProxy"
)

// Reasons of Accepted on a policy, in addition to ReasonAccepted. Ready is False with the
// same reason.
const (
	// ReasonInvalidPolicy: the field in the message is invalid, and the policy is ignored.
	ReasonInvalidPolicy = "InvalidPolicy"
	// ReasonInvalidResult: together with other policies, this one gives invalid settings; the
	// message names the field. Nodes retain their current settings.
	ReasonInvalidResult = "InvalidResult"
)

// Reasons of Overridden and Ineffective, and of examples in a policy's status.
const (
	// ReasonOverridden: stronger policies set fields of this one differently.
	ReasonOverridden    = "Overridden"
	ReasonNotOverridden = "NotOverridden"
	// ReasonIneffective: an override has no effect on a Service.
	ReasonIneffective  = "Ineffective"
	ReasonAllEffective = "AllEffective"
	// ReasonRejected: nodes reject the Service as shaped by the policy.
	ReasonRejected = "Rejected"
	// ReasonWaiting: the rollout has not reached the node.
	ReasonWaiting = "Waiting"
	// ReasonUpdating: the node has not yet reported its new settings as applied.
	ReasonUpdating = "Updating"
	// ReasonDeadlineMissed: the node did not report its new settings as applied in time.
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
	// ReasonDaemonSetDenied: the API server denies the DaemonSet.
	ReasonDaemonSetDenied = "DaemonSetDenied"
	// ReasonAgentPodsFailing: an image cannot be pulled or an agent keeps crashing; the update
	// halts.
	ReasonAgentPodsFailing = "AgentPodsFailing"
	// ReasonAgentPodsNotReady: a pod has been unscheduled or not ready for a minute. Ready
	// shows the nodes' own reason instead, if they have one.
	ReasonAgentPodsNotReady = "AgentPodsNotReady"
)

// Parts of the messages of the conditions Programmed and Accepted that programs parse.
const (
	// MessageNotAccepted begins the messages of an object that the agent does not accept. The path of
	// a field may follow.
	MessageNotAccepted = "Not accepted: "
	// MessageRestrictions separates what the kernel has from what could not be done, if anything.
	MessageRestrictions = ". Restrictions: "
	// MessageUnmaintained starts what an agent with enforcement Audit reports if no proxy runs on its
	// node.
	MessageUnmaintained = "no program maintains the rules"
	// MessageSilentSince starts the message of ReasonAgentNotResponding if a Lease shows when
	// the agent last responded: the time in RFC 3339 and a space follow.
	MessageSilentSince = "No heartbeat from the agent since "
)

// FormatVersions returns the versions of rendered objects that this release supports, in order.
func FormatVersions() []int32 {
	versions := make([]int32, 0, FormatVersion)
	for v := int32(1); v <= FormatVersion; v++ {
		versions = append(versions, v)
	}
	return versions
}

// KnownFormats returns the versions of rendered objects that the agent understands. An agent
// that reports none understands only the first.
func (r *AgentReport) KnownFormats() []int32 {
	if len(r.FormatVersions) == 0 {
		return []int32{1}
	}
	return r.FormatVersions
}

// NameHash is an object name's share of an inventory hash: its 64-bit FNV-1a hash. The
// inventory hash is the sum modulo 2^64: independent of the order, and updated with each name.
func NameHash(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // a hash never returns an error
	return h.Sum64()
}

// FormatInventoryHash formats an inventory hash as in NodeProxy.status.inventory.
func FormatInventoryHash(sum uint64) string {
	return fmt.Sprintf("%016x", sum)
}

// ServiceProxyRulesName returns the name of a Service's ServiceProxyRules.
func ServiceProxyRulesName(namespace, name string) string {
	return namespace + "." + name
}

const (
	// agentLeasePrefix separates agents' Leases from others, such as the controller's.
	agentLeasePrefix = "agent."
	// longAgentLeasePrefix is that of Nodes whose name is too long for agentLeasePrefix.
	longAgentLeasePrefix = "agent-of-long-name."
	// maxObjectName is the maximum length of a name, in bytes.
	maxObjectName = 253
)

// AgentLeaseName returns the name of an agent's Lease: "agent." and the Node's name, or a hash
// of the Node's name if that is longer than 247 bytes. No two Nodes share a Lease.
func AgentLeaseName(node string) string {
	if len(agentLeasePrefix)+len(node) <= maxObjectName {
		return agentLeasePrefix + node
	}
	sum := sha256.Sum256([]byte(node))
	return longAgentLeasePrefix + hex.EncodeToString(sum[:])
}

// IsAgentLeaseName reports whether AgentLeaseName can return this name.
func IsAgentLeaseName(name string) bool {
	return strings.HasPrefix(name, agentLeasePrefix) || strings.HasPrefix(name, longAgentLeasePrefix)
}
