package findings

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

const (
	// recent is how long a repair of rules counts as a warning.
	recent = 10 * time.Minute
	// nearlyFull is the usage of a connection tracking table in percent that is too high,
	// whatever the agent reports.
	nearlyFull = 80
)

// NodeStates checks what the agents report.
func (e *Examination) NodeStates() {
	if len(e.Nodes) == 0 && e.NodeProxy != nil {
		e.Add(Finding{
			Severity: Problem, Reason: "NoNodes", Check: CheckNodes, Key: "no nodes", Causes: []string{KeyBehind, KeyNoController},
			Message: "no node has rules (there are no NodeProxyRules)", Remedy: e.CheckController(),
		})
	}
	var fresh []string
	restrictions, fallbacks := map[string][]string{}, map[string][]string{}
	for _, node := range e.Nodes {
		if e.IsNew(node) {
			fresh = append(fresh, node.Name)
			continue
		}
		e.nodeState(node)
		if c := Condition(node.Status.Conditions, v1alpha1.ConditionProgrammed, metav1.ConditionTrue); c != nil {
			if _, text, _ := strings.Cut(c.Message, v1alpha1.MessageRestrictions); text != "" {
				restrictions[text] = append(restrictions[text], node.Name)
			}
		}
		if c := Condition(node.Status.Conditions, v1alpha1.ConditionModeFallback, metav1.ConditionTrue); c != nil && mayFallBack(node) {
			fallbacks[Message(c)] = append(fallbacks[Message(c)], node.Name)
		}
	}
	if len(fresh) > 0 {
		e.Notef("no report yet from %s, where the agent's image may still be pulled: %s", text.Count(len(fresh), "new node"), Some(fresh))
	}
	for _, text := range slices.Sorted(maps.Keys(restrictions)) {
		e.Notef("on %s: programmed, with restrictions: %s", Some(restrictions[text]), text)
	}
	for _, text := range slices.Sorted(maps.Keys(fallbacks)) {
		e.Notef("on %s: the fallback mode runs, as the settings allow: %s", Some(fallbacks[text]), text)
	}
	if absent := len(e.NodeRules) - len(e.Nodes); absent > 0 {
		e.Notef("the Node of %s is gone; these objects are retained for ten minutes", text.Count(absent, "NodeProxyRules object"))
	}
	e.lagging()
}

func (e *Examination) nodeState(node *v1alpha1.NodeProxyRules) {
	programmed := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed)
	if programmed == nil {
		e.OnNode(node, Finding{
			Severity: Problem, Reason: "AgentNeverReported", Key: NodeKey(node.Name, "silent"), Causes: []string{NodeKey(node.Name, "pods")}, Transient: true,
			Message: "no agent has reported on this node yet", Since: node.CreationTimestamp,
			RemedyOn: e.CheckAgent("check whether one runs, and its log", "troubleshooting.md#nodeproxyagentnotresponding"),
		})
		return
	}
	if cluster.TooOld(node) != "" {
		e.OnNode(node, Finding{
			Severity: Problem, Reason: "AgentTooOld", Key: NodeKey(node.Name, "accepted"), Since: since(Condition(node.Status.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse)),
			Message: fmt.Sprintf("the agent (%s) does not support format %d of the node's rules, only %v: the node retains its previous rules", cmp.Or(node.Status.Agent.Version, "of an unknown release"), node.Spec.FormatVersion, node.Status.Agent.KnownFormats()),
			Remedy:  e.upgradeAgents(),
		})
		return
	}
	e.programmed(node, programmed)
	e.abnormal(node, programmed)
	if cluster.Audits(node) {
		e.audit(node, programmed)
	}
	e.behind(node)
}

// OnNode adds a finding about a node. Graver findings of the node may explain it.
func (e *Examination) OnNode(node *v1alpha1.NodeProxyRules, f Finding) {
	f.Check, f.Nodes = CheckNodes, []string{node.Name}
	for _, key := range NodeKeys(node) {
		if key == f.Key {
			break
		}
		f.Causes = append(f.Causes, key)
	}
	e.Add(f)
}

// programmed reports why a kernel does not have all desired rules.
func (e *Examination) programmed(node *v1alpha1.NodeProxyRules, c *metav1.Condition) {
	f := Finding{Severity: Problem, Reason: c.Reason, Key: NodeKey(node.Name, "programmed"), Message: Message(c)}
	if c.Status != metav1.ConditionTrue { // else the transition time is not that of the reason
		f.Since = c.LastTransitionTime
	}
	switch c.Reason {
	case v1alpha1.ReasonAgentNotResponding:
		f.Key, f.Causes = NodeKey(node.Name, "silent"), []string{NodeKey(node.Name, "pods")}
		f.Message = "the agent sends no heartbeat (its Lease is not renewed): the node's rules become stale"
		f.Since = silentSince(c)
		f.RemedyOn = e.CheckAgent("check its pod and log", "troubleshooting.md#nodeproxyagentnotresponding")
	case v1alpha1.ReasonConflictingProxy:
		f.Key, f.Remedy = NodeKey(node.Name, "conflict"), e.Docs.See("if nodeproxy is to serve the node, remove the other proxy: the agent takes over by itself", "troubleshooting.md#nodeproxyconflictingproxy")
	case v1alpha1.ReasonRemoved:
		f.Causes = []string{KeyRemoving, KeyNoNodeProxy}
		f.Remedy = e.Docs.See("create a NodeProxy to get the rules back", "removal.md#with-cleanup")
	case v1alpha1.ReasonFailed:
		if Condition(node.Status.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse) != nil {
			return // the finding about Accepted states the same
		}
		f.Remedy = e.Docs.See("fix on the node what the message names; the agent retries by itself", "troubleshooting.md#nodeproxynodenotprogrammed")
	case v1alpha1.ReasonPending:
		f.Transient, f.RemedyOn = true, e.CheckAgent("wait for a minute; if it persists, check the agent's log", "troubleshooting.md#nodeproxychangepending")
	case v1alpha1.ReasonSomeServicesRejected:
		e.rejectedOn(node)
		return
	case v1alpha1.ReasonRetained:
		f.Severity, f.Remedy = Warning, e.Docs.See("check whether a controller runs, which writes the objects again: "+e.Own.Controllers(), "troubleshooting.md#nodeproxyservicesretained")
		f.Transient, f.Causes = true, []string{KeyInventory}
	case v1alpha1.ReasonAuditDiffers, v1alpha1.ReasonAuditInSync:
		return // see enforcement
	default:
		if c.Status == metav1.ConditionTrue {
			return
		}
		f.Remedy = e.Docs.See("follow the message", "troubleshooting.md#what-programmed-shows")
	}
	e.OnNode(node, f)
}

// silentSince is when an agent sent its last heartbeat, which the message contains. The
// condition changes later.
func silentSince(c *metav1.Condition) metav1.Time {
	_, rest, _ := strings.Cut(c.Message, v1alpha1.MessageSilentSince)
	when, _, _ := strings.Cut(rest, " ")
	if t, err := time.Parse(time.RFC3339, when); err == nil {
		return metav1.NewTime(t)
	}
	return c.LastTransitionTime
}

func (e *Examination) rejectedOn(node *v1alpha1.NodeProxyRules) {
	rejected := node.Status.Rejected
	if rejected == nil {
		return
	}
	f := Finding{
		Severity: Problem, Reason: v1alpha1.ReasonSomeServicesRejected,
		Remedy: e.Docs.See("provide what the kernel lacks (see the message), or change the Service", "troubleshooting.md#nodeproxyservicesrejected"),
	}
	for _, example := range rejected.Examples {
		service, why, _ := strings.Cut(example, ": ")
		if !e.Concerns(service) {
			continue
		}
		f.Service, f.Message = service, "the kernel of the node rejects the Service: "+why
		e.OnNode(node, f)
	}
	if more := int(rejected.Count) - len(rejected.Examples); more > 0 {
		f.Service, f.Message = "", fmt.Sprintf("the kernel of the node rejects %s that its status does not name", text.Count(more, "more Service"))
		e.OnNode(node, f)
	}
}

// abnormal reports conditions and counts that are graver than, or come on top of, the reason
// of Programmed.
func (e *Examination) abnormal(node *v1alpha1.NodeProxyRules, programmed *metav1.Condition) {
	conditions := node.Status.Conditions
	if c := Condition(conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse); c != nil {
		e.OnNode(node, Finding{
			Severity: Problem, Reason: c.Reason, Key: NodeKey(node.Name, "accepted"), Since: c.LastTransitionTime,
			Message: "the node cannot apply its settings: " + strings.TrimPrefix(Message(c), v1alpha1.MessageNotAccepted),
			Remedy:  e.Docs.See("fix on the node what the message names, or change the settings", "troubleshooting.md#nodeproxynodenotprogrammed"),
		})
	}
	if node.Status.Retained > 0 && programmed.Reason != v1alpha1.ReasonRetained && cluster.Current(node) {
		e.OnNode(node, Finding{
			Severity: Warning, Reason: v1alpha1.ReasonRetained, Transient: true, Causes: []string{KeyInventory},
			Message: fmt.Sprintf("the node retains the rules of %s whose objects have vanished", text.Count(int(node.Status.Retained), "Service")),
			Remedy:  e.Docs.See("see which Services they are, and why: kubectl describe nodeproxyrules "+node.Name, "troubleshooting.md#nodeproxyservicesretained"),
		})
	}
	if c := Condition(conditions, v1alpha1.ConditionConflictingProxy, metav1.ConditionTrue); c != nil && programmed.Reason != v1alpha1.ReasonConflictingProxy {
		e.OnNode(node, Finding{
			Severity: Warning, Reason: v1alpha1.ReasonConflictingProxy, Since: c.LastTransitionTime,
			Message: Message(c), Remedy: e.Docs.See("remove the other proxy from the node", "troubleshooting.md#nodeproxyconflictingproxy"),
		})
	}
	// With a fallback in the settings it is a note.
	if c := Condition(conditions, v1alpha1.ConditionModeFallback, metav1.ConditionTrue); c != nil && !mayFallBack(node) {
		e.OnNode(node, Finding{
			Severity: Warning, Reason: v1alpha1.ConditionModeFallback, Since: c.LastTransitionTime,
			Message: "the node does not run the desired mode: " + Message(c),
			Remedy:  e.Docs.See("provide what the node lacks (see the message), or set the mode that runs", "troubleshooting.md#nodeproxymodefallback"),
		})
	}
	e.drifted(node)
	if d := node.Status.Difference; d != nil && d.Count > 0 && !cluster.Audits(node) {
		e.OnNode(node, Finding{
			Severity: Warning, Reason: "KernelDiffers", Transient: true,
			Message: fmt.Sprintf("the kernel differs from the desired rules in %s: %s", text.Count(int(d.Count), "place"), Some(d.Examples)),
			Remedy:  e.Docs.See("find out what changes rules on the node", "troubleshooting.md#nodeproxyrulesdrifted"),
		})
	}
}

// mayFallBack reports whether the settings allow another mode than the desired one.
func mayFallBack(node *v1alpha1.NodeProxyRules) bool {
	f := node.Spec.Settings.Fallback
	return f != nil && *f != v1alpha1.FallbackNone
}

func (e *Examination) drifted(node *v1alpha1.NodeProxyRules) {
	drift := node.Status.Drift
	if c := Condition(node.Status.Conditions, v1alpha1.ConditionDrifted, metav1.ConditionTrue); c != nil {
		e.OnNode(node, Finding{
			Severity: Problem, Reason: v1alpha1.ConditionDrifted, Since: c.LastTransitionTime, Message: Message(c),
			Remedy: e.Docs.See("find and stop the program that modifies the rules", "troubleshooting.md#nodeproxyrulesdrifted"),
		})
		return
	}
	if drift != nil && drift.Repairs > 0 && e.Time.Sub(drift.LastTime.Time) < recent {
		e.OnNode(node, Finding{
			Severity: Warning, Reason: "RulesRepaired", Since: drift.LastTime,
			Message: fmt.Sprintf("another program has modified nodeproxy's rules on the node, and the agent has repaired them (%s since it started; last: %s)", text.Count(int(drift.Repairs), "repair"), Some(drift.Examples[:min(1, len(drift.Examples))])),
			Remedy:  e.Docs.See("if it happens again, find that program", "troubleshooting.md#nodeproxyrulesdrifted"),
		})
	}
}

// behind reports an agent that has not applied the rules or settings of its node.
func (e *Examination) behind(node *v1alpha1.NodeProxyRules) {
	since := metav1.NewTime(cluster.Written(node))
	if what := e.Stale(node); what != "" {
		e.OnNode(node, Finding{
			Severity: Problem, Reason: "RulesNotApplied", Key: NodeKey(node.Name, "programmed"), Transient: true, Token: fmt.Sprint(node.Status.ObservedGeneration),
			Message: what, Since: since,
			RemedyOn: e.CheckAgent("check its pod and log", "troubleshooting.md#nodeproxyagentslagging"),
		})
	}
	if what := e.OldSettings(node); what != "" {
		e.OnNode(node, Finding{
			Severity: Problem, Reason: "SettingsNotApplied", Key: NodeKey(node.Name, "settings"), Transient: true,
			Message: what, Since: since,
			RemedyOn: e.CheckAgent("check the agent's log", "troubleshooting.md#nodeproxynodenotprogrammed"),
		})
	}
}

// CheckAgent is the remedy for an agent of one node, or of several.
func (e *Examination) CheckAgent(action, page string) func(node string) string {
	return func(node string) string {
		return e.Docs.See(action+": "+e.Own.Agent(node), page)
	}
}

// Reasons of findings about nodes with enforcement Audit: rules that differ are worse than
// Audit alone, and rules that no proxy maintains are the worst.
const (
	ReasonAudit             = "Audit"
	reasonAuditWithoutProxy = "AuditWithoutProxy"
)

func (e *Examination) audit(node *v1alpha1.NodeProxyRules, programmed *metav1.Condition) {
	f := Finding{Severity: Warning, Reason: ReasonAudit, Message: "enforcement is Audit: nodeproxy only compares, and does not maintain rules there"}
	field := "spec.settings.enforcement of the NodeProxy"
	switch policies := node.Spec.Policies; len(policies) {
	case 0:
	case 1:
		field = fmt.Sprintf("that of the NodeProxyPolicy %s, or of the NodeProxy", policies[0])
	default:
		field = fmt.Sprintf("that of one of the NodeProxyPolicies %s, or of the NodeProxy", strings.Join(policies, ", "))
	}
	f.Remedy = e.Docs.See("once nothing differs, set it to Enforce ("+field+") while kube-proxy still runs: the agents then wait with reason ConflictingProxy; after that, remove kube-proxy from the nodes", "migration.md#3-set-enforcement-to-enforce")
	if programmed.Reason == v1alpha1.ReasonAuditDiffers {
		f.Reason = v1alpha1.ReasonAuditDiffers
	}
	if cluster.Unmaintained(node) {
		f.Severity, f.Reason, f.Message = Problem, reasonAuditWithoutProxy, Message(programmed)
		f.Remedy = e.Docs.See("start the previous proxy again, or set enforcement to Enforce ("+field+")", "migration.md#2-compare")
	}
	if d := node.Status.Difference; d != nil && d.Count > 0 {
		f.Message = fmt.Sprintf("%s, such as %s; %s", text.Count(int(d.Count), "difference"), Some(d.Examples[:min(1, len(d.Examples))]), f.Message)
	}
	e.OnNode(node, f)
}

// upgradeAgents is how the agents get the controller's release.
func (e *Examination) upgradeAgents() string {
	action := "set the image of your agents' DaemonSet to the controller's release"
	if np := e.NodeProxy; np != nil && np.Spec.Agent != nil && np.Spec.Agent.Management != nil && *np.Spec.Agent.Management == v1alpha1.AgentManaged {
		action = "clear spec.agent.image of the NodeProxy, or set it to the controller's release; the condition AgentsDeployed of the NodeProxy reports the progress"
	}
	return e.Docs.See(action, "upgrade.md#versions-that-fit-together")
}

// lagging reports nodes that the controller counts as behind, unless a finding about a node
// explains it.
func (e *Examination) lagging() {
	if e.NodeProxy == nil || e.NodeProxy.Status.Nodes.Lagging == 0 {
		return
	}
	e.Add(Finding{
		Severity: Problem, Reason: "AgentsLagging", Check: CheckNodes, Key: KeyLagging, Transient: true,
		Causes:  append([]string{KeyNoController}, NodeKeys(e.Nodes...)...),
		Message: "changes that are older than a minute are not applied on " + text.Count(int(e.NodeProxy.Status.Nodes.Lagging), "node"),
		Remedy:  e.Docs.See("check the agents' logs for failed writes or watches: "+e.Own.Agent(""), "troubleshooting.md#nodeproxyagentslagging"),
	})
}

// Conntrack checks whether connection tracking tables are nearly full.
func (e *Examination) Conntrack() {
	for _, node := range e.Nodes {
		c := Condition(node.Status.Conditions, v1alpha1.ConditionConntrackPressure, metav1.ConditionTrue)
		report := node.Status.Conntrack
		switch {
		case c != nil || report != nil && report.UsagePercent >= nearlyFull:
			e.pressure(node, c)
		case report != nil && report.Drop > 0:
			e.Notef("%s has dropped %s since it started because its connection tracking table was full; now %d%% are in use", node.Name, text.Count(int(report.Drop), "packet"), report.UsagePercent)
		}
	}
}

func (e *Examination) pressure(node *v1alpha1.NodeProxyRules, c *metav1.Condition) {
	f := Finding{
		Severity: Problem, Reason: v1alpha1.ConditionConntrackPressure, Check: CheckConntrack, Nodes: []string{node.Name},
		Causes: []string{NodeKey(node.Name, "silent")}, Since: since(c),
		Message: "the connection tracking table is nearly full, and a full one drops new connections",
	}
	most := int64(0)
	if report := node.Status.Conntrack; report == nil {
		f.Message += ": " + Message(c)
	} else {
		most = report.Max
		f.Message += fmt.Sprintf(": %d of %d connections (%d%%), %s dropped and %s not inserted since the node started",
			report.Entries, report.Max, report.UsagePercent, text.Count(int(report.Drop), "packet"), text.Count(int(report.InsertFailed), "connection"))
	}
	s := v1alpha1.CompleteSettings(&node.Spec.Settings).Conntrack
	remedy := "nodeproxy does not set the table's size (conntrack.maxPerCore is 0): raise the sysctl net.netfilter.nf_conntrack_max on the node"
	if *s.MaxPerCore != 0 {
		remedy = fmt.Sprintf("raise settings.conntrack.min (now %d, for example to %d) or maxPerCore (now %d) of the NodeProxy, or of a NodeProxyPolicy for this node", *s.Min, 2*max(int64(*s.Min), most), *s.MaxPerCore)
	}
	f.Remedy = e.Docs.See(remedy, "troubleshooting.md#nodeproxyconntrackpressure")
	e.Add(f)
}
