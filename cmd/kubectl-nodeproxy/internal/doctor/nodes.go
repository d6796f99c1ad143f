package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// recently is how long ago a repair is worth a warning.
const recently = 10 * time.Minute

// nodeKey and nodeKeys name what may be wrong with a node, the graver first.
func nodeKey(node, what string) string { return "node " + node + " " + what }

func nodeKeys(node string) []string {
	var keys []string
	for _, what := range []string{"silent", "conflict", "accepted", "programmed", "pods"} {
		keys = append(keys, nodeKey(node, what))
	}
	return keys
}

// nodeStates looks at what the agents report.
func (e *examination) nodeStates() {
	if len(e.nodes) == 0 && e.NodeProxy != nil {
		e.add(Finding{
			Severity: Problem, Name: "NoNodes", Check: CheckNodes, key: "no nodes", causes: []string{keyBehind},
			What: "no node has rules (there are no NodeProxyRules)", Do: e.doController(),
		})
	}
	for _, node := range e.nodes {
		e.nodeState(node)
	}
	e.freshness()
	for _, but := range slices.Sorted(maps.Keys(e.buts)) {
		e.remark("on %s: programmed, but: %s", some(e.buts[but]), but)
	}
	if absent := len(e.NodeRules) - len(e.nodes); absent > 0 {
		e.remark("Nodes that are gone: %d; their NodeProxyRules stay for ten minutes", absent)
	}
	e.withoutRules()
	e.lagging()
}

func (e *examination) onNode(node *v1alpha1.NodeProxyRules, f Finding) {
	f.Check, f.Nodes = CheckNodes, []string{node.Name}
	for _, key := range nodeKeys(node.Name) {
		if key == f.key {
			break
		}
		f.causes = append(f.causes, key)
	}
	e.add(f)
}

func (e *examination) nodeState(node *v1alpha1.NodeProxyRules) {
	status := &node.Status
	programmed := findCondition(status.Conditions, v1alpha1.ConditionProgrammed)
	if e.isNew(node) {
		e.remark("%s is new, and no agent has reported on it yet: its image may still be pulled", node.Name)
		return
	}
	if programmed == nil {
		e.onNode(node, Finding{
			Severity: Problem, Name: "NeverReported", key: nodeKey(node.Name, "silent"), causes: []string{nodeKey(node.Name, "pods")}, passing: true,
			What: "no agent has reported on this node yet", Since: &node.CreationTimestamp,
			doOn: e.doAgent("see whether one runs, and what it says", "troubleshooting.md#nodeproxyagentnotresponding"),
		})
		return
	}
	if e.tooOld(node) {
		return
	}
	e.accepted(node)
	e.programmed(node, programmed)
	e.abnormal(node)
	e.enforcement(node)
	e.settings(node)
}

// tooOld reports whether the agent does not know the format of what it is given.
func (e *examination) tooOld(node *v1alpha1.NodeProxyRules) bool {
	if notes.TooOld(node) == "" {
		return false
	}
	e.onNode(node, Finding{
		Severity: Problem, Name: "AgentTooOld", key: nodeKey(node.Name, "accepted"),
		What: fmt.Sprintf("the agent (%s) does not know format %d, in which the node's rules are written: they stay as they were", cmp.Or(node.Status.Agent.Version, "of an unknown release"), node.Spec.FormatVersion),
		Do:   e.doUpgrade(),
	})
	return true
}

func (e *examination) accepted(node *v1alpha1.NodeProxyRules) {
	if c := condition(node.Status.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse); c != nil {
		e.onNode(node, Finding{
			Severity: Problem, Name: c.Reason, key: nodeKey(node.Name, "accepted"), Since: since(c),
			What: "the node cannot do what its settings ask for: " + cmpMessage(c),
			Do:   e.docs.See("mend on the node what the message names, or change the settings", "troubleshooting.md#nodeproxynodenotprogrammed"),
		})
	}
}

// programmed tells why a kernel does not hold all that is wanted.
func (e *examination) programmed(node *v1alpha1.NodeProxyRules, c *metav1.Condition) {
	f := Finding{Severity: Problem, Name: c.Reason, key: nodeKey(node.Name, "programmed"), Since: notProgrammedSince(c), What: cmpMessage(c)}
	switch c.Reason {
	case v1alpha1.ReasonAgentNotResponding:
		f.key, f.causes = nodeKey(node.Name, "silent"), []string{nodeKey(node.Name, "pods")}
		f.What = "the agent gives no sign of life (its Lease is not renewed): the rules of the node stay as they are and go stale"
		f.Since = silentSince(c)
		f.doOn = e.doAgent("see its pod and log", "troubleshooting.md#nodeproxyagentnotresponding")
	case v1alpha1.ReasonConflictingProxy:
		f.key, f.Do = nodeKey(node.Name, "conflict"), e.docs.See("take the other proxy off the node, if nodeproxy is to serve it: the agent takes over by itself", "troubleshooting.md#nodeproxyconflictingproxy")
		f.What = cmpMessage(c)
	case v1alpha1.ReasonRemoved:
		f.causes = []string{keyRemoving, keyNoNodeProxy}
		f.Do = e.docs.See("create a NodeProxy to have the rules back", "removal.md#with-cleanup")
	case v1alpha1.ReasonFailed:
		if condition(node.Status.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse) != nil {
			return // which says the same
		}
		f.Do = e.docs.See("mend on the node what the message names; the agent tries again by itself", "troubleshooting.md#nodeproxynodenotprogrammed")
	case v1alpha1.ReasonPending:
		f.passing, f.doOn = true, e.doAgent("wait for a minute; if it stays so, see what the agent says", "troubleshooting.md#nodeproxychangepending")
	case v1alpha1.ReasonSomeServicesRefused:
		e.refusedOn(node)
		return
	case v1alpha1.ReasonHeld:
		f.Severity, f.Do = Warning, e.docs.See("see whether a controller runs, which writes the objects again: "+e.own.Controllers(), "troubleshooting.md#nodeproxyservicesheld")
		f.passing, f.causes = true, []string{keyInventory}
	case v1alpha1.ReasonAuditDiffers, v1alpha1.ReasonAuditInSync:
		return // what the node is told says so, too
	default:
		if c.Status == metav1.ConditionTrue {
			if _, but, ok := strings.Cut(c.Message, v1alpha1.MessageBut); ok {
				e.buts[but] = append(e.buts[but], node.Name)
			}
			return
		}
		f.Do = e.docs.See("do what the message says", "troubleshooting.md#what-programmed-says")
	}
	e.onNode(node, f)
}

// notProgrammedSince is when Programmed came to be what it is, unless it is True: then it
// has a reason that began later, and its time is that at which the node was programmed.
func notProgrammedSince(c *metav1.Condition) *metav1.Time {
	if c != nil && c.Status == metav1.ConditionTrue {
		return nil
	}
	return since(c)
}

// silentSince is when an agent gave its last sign of life, which the message tells. The
// condition itself changed only once that was long enough ago.
func silentSince(c *metav1.Condition) *metav1.Time {
	_, rest, _ := strings.Cut(c.Message, v1alpha1.MessageSilentSince)
	when, _, _ := strings.Cut(rest, " ")
	if t, err := time.Parse(time.RFC3339, when); err == nil {
		return &metav1.Time{Time: t}
	}
	return since(c)
}

// refusedOn names the Services that a kernel does not take.
func (e *examination) refusedOn(node *v1alpha1.NodeProxyRules) {
	refused := node.Status.Refused
	if refused == nil {
		return
	}
	for _, example := range refused.Examples {
		service, why, _ := strings.Cut(example, ": ")
		if e.only != nil && service != e.only.String() {
			continue
		}
		e.onNode(node, Finding{
			Severity: Problem, Name: v1alpha1.ReasonSomeServicesRefused, Service: service,
			What: "the kernel of the node does not take the Service: " + why, Do: e.doRefused(),
		})
	}
	if more := int(refused.Count) - len(refused.Examples); more > 0 {
		e.onNode(node, Finding{
			Severity: Problem, Name: v1alpha1.ReasonSomeServicesRefused,
			What: fmt.Sprintf("the kernel of the node does not take %s, not named here", output.Plural(more, "more Service")), Do: e.doRefused(),
		})
	}
}

// abnormal tells of conditions that are True when something is wrong.
func (e *examination) abnormal(node *v1alpha1.NodeProxyRules) {
	conditions := node.Status.Conditions
	if c := condition(conditions, v1alpha1.ConditionConflictingProxy, metav1.ConditionTrue); c != nil &&
		findCondition(conditions, v1alpha1.ConditionProgrammed).Reason != v1alpha1.ReasonConflictingProxy {
		e.onNode(node, Finding{
			Severity: Warning, Name: v1alpha1.ReasonConflictingProxy, Since: since(c),
			What: cmpMessage(c), Do: e.docs.See("take the other proxy off the node", "troubleshooting.md#nodeproxyconflictingproxy"),
		})
	}
	if c := condition(conditions, v1alpha1.ConditionModeFallback, metav1.ConditionTrue); c != nil {
		e.onNode(node, Finding{
			Severity: Warning, Name: v1alpha1.ConditionModeFallback, Since: since(c),
			What: "another mode runs than the one that is asked for: " + cmpMessage(c),
			Do:   e.docs.See("give the node what the message says that it lacks, or ask for the mode that runs", "troubleshooting.md#nodeproxymodefallback"),
		})
	}
	e.drifted(node)
	if d := node.Status.Difference; d != nil && d.Count > 0 && !notes.Audits(node) {
		e.onNode(node, Finding{
			Severity: Warning, Name: "KernelDiffers", passing: true,
			What: fmt.Sprintf("the kernel differs from what is wanted in %s: %s", output.Plural(int(d.Count), "place"), some(d.Examples)),
			Do:   e.docs.See("find what changes rules on the node", "troubleshooting.md#nodeproxyrulesdrifted"),
		})
	}
}

// drifted tells of somebody who changes rules.
func (e *examination) drifted(node *v1alpha1.NodeProxyRules) {
	drift := node.Status.Drift
	if c := condition(node.Status.Conditions, v1alpha1.ConditionDrifted, metav1.ConditionTrue); c != nil {
		e.onNode(node, Finding{
			Severity: Problem, Name: v1alpha1.ConditionDrifted, Since: since(c), What: cmpMessage(c),
			Do: e.docs.See("find and stop what does it", "troubleshooting.md#nodeproxyrulesdrifted"),
		})
		return
	}
	if drift != nil && drift.Repairs > 0 && e.Time.Sub(drift.LastTime.Time) < recently {
		e.onNode(node, Finding{
			Severity: Warning, Name: "RulesRepaired", Since: &drift.LastTime,
			What: fmt.Sprintf("somebody has changed nodeproxy's rules on the node, and its agent has repaired them (%s since it started; last: %s)", output.Plural(int(drift.Repairs), "repair"), some(drift.Examples[:min(1, len(drift.Examples))])),
			Do:   e.docs.See("if it comes again, find what does it", "troubleshooting.md#nodeproxyrulesdrifted"),
		})
	}
}

// enforcement tells of nodes that only compare. That nothing else proxies there is worse.
func (e *examination) enforcement(node *v1alpha1.NodeProxyRules) {
	if !notes.Audits(node) {
		return
	}
	f := Finding{Severity: Warning, Name: "Audit", What: "enforcement is Audit: nodeproxy only compares, and maintains no rules there"}
	by := "spec.settings.enforcement of the NodeProxy"
	if n := len(node.Spec.Policies); n > 0 {
		by = fmt.Sprintf("that of the NodeProxyPolicy %s, or of the NodeProxy", node.Spec.Policies[0])
		if n > 1 {
			by = fmt.Sprintf("that of one of the NodeProxyPolicies %s, or of the NodeProxy", strings.Join(node.Spec.Policies, ", "))
		}
	}
	f.Do = e.docs.See("once nothing differs set it to Enforce ("+by+") while kube-proxy still runs: the agents then wait, as ConflictingProxy; take kube-proxy off the nodes after that", "migration.md#3-set-enforcement-to-enforce")
	if notes.Unmaintained(node) {
		f.Severity, f.What = Problem, cmpMessage(findCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed))
		f.Do = e.docs.See("start again what proxied there, or set enforcement to Enforce ("+by+")", "migration.md#2-compare")
	}
	if d := node.Status.Difference; d != nil && d.Count > 0 {
		f.What += fmt.Sprintf("; %s, such as %s", output.Plural(int(d.Count), "difference"), some(d.Examples[:min(1, len(d.Examples))]))
	}
	e.onNode(node, f)
}

// doAgent is what to do about the agent of a node, or of several.
func (e *examination) doAgent(action, page string) func(node string) string {
	return func(node string) string {
		return e.docs.See(action+": "+e.own.Agent(node), page)
	}
}

func (e *examination) doRefused() string {
	return e.docs.See("give the kernel what the message says that it lacks, or change the Service", "troubleshooting.md#nodeproxyservicesrefused")
}

// doUpgrade is how the agents get the controller's release.
func (e *examination) doUpgrade() string {
	action := "give your DaemonSet of the agents the image of the controller's release"
	switch np := e.NodeProxy; {
	case np == nil:
		action = "give the agents' DaemonSet the image of the controller's release"
	case np.Spec.Agent != nil && np.Spec.Agent.Management != nil && *np.Spec.Agent.Management == v1alpha1.AgentManaged:
		action = "clear spec.agent.image of the NodeProxy, or set it to the controller's release; the condition AgentsDeployed of the NodeProxy says how far that is"
	}
	return e.docs.See(action, "upgrade.md#versions-that-fit-together")
}

// settings tells of a node whose agent does not do yet what it is told.
func (e *examination) settings(node *v1alpha1.NodeProxyRules) {
	what := notes.OldSettings(node, e.Time)
	if what == "" {
		return
	}
	e.onNode(node, Finding{
		Severity: Problem, Name: "SettingsNotInForce", key: nodeKey(node.Name, "settings"), passing: true,
		What: what,
		doOn: e.doAgent("see what the agent says", "troubleshooting.md#nodeproxynodenotprogrammed"),
	})
}

// withoutRules finds nodes on which pods run and of which the controller knows nothing.
func (e *examination) withoutRules() {
	if e.lacking(cluster.Pods) != "" || e.NodeProxy == nil {
		return
	}
	known := map[string]bool{}
	for i := range e.NodeRules {
		known[e.NodeRules[i].Name] = true
	}
	for i := range e.Pods { // one that says so tells of the node of all
		spec := &e.Pods[i].Spec
		if spec.OS != nil && spec.OS.Name == corev1.Windows || spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows) {
			known[spec.NodeName] = true
		}
	}
	missing := map[string]bool{}
	for i := range e.Pods {
		pod := &e.Pods[i]
		if node := pod.Spec.NodeName; node != "" && !known[node] && pod.Status.Phase == corev1.PodRunning && !missing[node] {
			missing[node] = true
			e.add(Finding{
				Severity: Problem, Name: "NodeRulesMissing", Check: CheckNodes, Nodes: []string{node}, key: nodeKey(node, "rules"), causes: []string{keyBehind},
				What: "pods run on the node, and there is no NodeProxyRules for it: no agent serves it", passing: true,
				Do: e.docs.See("see whether a controller runs, which writes them for each Node: "+e.own.Controllers(), "troubleshooting.md#nodeproxynoderulesmissing"),
			})
		}
	}
}

// lagging tells of nodes that the controller counts as behind and that say nothing of
// it themselves.
func (e *examination) lagging() {
	if e.NodeProxy == nil || e.NodeProxy.Status.Nodes.Lagging == 0 {
		return
	}
	f := Finding{
		Severity: Problem, Name: "AgentsLagging", Check: CheckNodes, key: keyLagging, passing: true,
		What: "changes that are older than a minute are not applied on " + output.Plural(int(e.NodeProxy.Status.Nodes.Lagging), "node"),
		Do:   e.docs.See("see in the agents' logs whether writes or watches fail: "+e.own.Agent(""), "troubleshooting.md#nodeproxyagentslagging"),
	}
	for _, node := range e.nodes {
		f.causes = append(f.causes, nodeKeys(node.Name)...)
	}
	e.add(f)
}

func findCondition(of []metav1.Condition, name string) *metav1.Condition {
	for i := range of {
		if of[i].Type == name {
			return &of[i]
		}
	}
	return nil
}
