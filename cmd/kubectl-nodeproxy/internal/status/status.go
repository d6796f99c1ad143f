package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Report is the state of a cluster.
type Report struct {
	metav1.TypeMeta `json:",inline"`
	// Time is when the objects were read.
	Time metav1.Time `json:"time"`
	// OK: all checks ran, and found the cluster healthy.
	OK bool `json:"ok"`
	// NodeProxy is absent while nodeproxy is not enabled.
	NodeProxy *NodeProxy `json:"nodeProxy,omitempty"`
	// AgentVersions counts the nodes by the release of their agent.
	AgentVersions []Count  `json:"agentVersions,omitempty"`
	Nodes         Nodes    `json:"nodes"`
	Services      Services `json:"services"`
	Policies      Policies `json:"policies"`
	// Conntrack lists the fullest connection tracking tables, the fullest first.
	Conntrack []Conntrack `json:"conntrack,omitempty"`
	// Findings are problems and warnings: what explains most comes first.
	Findings []findings.Finding `json:"findings,omitempty"`
	// Rollouts are changes and policies that are not complete.
	Rollouts []Rollout `json:"rollouts,omitempty"`
	// UnrenderedServices are the newest ten Services that the controller cannot render or store.
	UnrenderedServices []v1alpha1.UnrenderedService `json:"unrenderedServices,omitempty"`
	// SkippedChecks could not run.
	SkippedChecks []findings.SkippedCheck `json:"skippedChecks,omitempty"`
	// Notes are not problems.
	Notes []string `json:"notes,omitempty"`

	healthy    bool   // as far as checks ran
	observed   bool   // the controller has processed the newest objects
	programmed int    // nodes
	nodes      []node // all
}

// NodeProxy is the object that enables nodeproxy.
type NodeProxy struct {
	CreationTime metav1.Time `json:"creationTime"`
	Deleting     bool        `json:"deleting,omitempty"`
	// ControllerVersion is empty until a controller has processed the object.
	ControllerVersion string            `json:"controllerVersion,omitempty"`
	Ready             *metav1.Condition `json:"ready,omitempty"`
	AgentsDeployed    *metav1.Condition `json:"agentsDeployed,omitempty"`
}

// Count is how many there are of something.
type Count struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

// Able is how many nodes could run a mode.
type Able struct {
	Mode  v1alpha1.ProxyMode `json:"mode"`
	Nodes int                `json:"nodes"`
	// Of is how many report whether they could, or run the mode.
	Of int `json:"of"`
	// Node lacks something for the mode: the first one. Empty: none.
	Node  string `json:"node,omitempty"`
	Lacks string `json:"lacks,omitempty"`
}

// String returns it as in "2 of 3 could run NFTables".
func (a Able) String() string {
	text := fmt.Sprintf("%d of %d could run %s", a.Nodes, a.Of, a.Mode)
	if a.Nodes == a.Of {
		text = fmt.Sprintf("all could run %s", a.Mode)
	}
	if a.Node != "" {
		text += fmt.Sprintf(" (%s: %s)", a.Node, a.Lacks)
	}
	return text
}

// String returns it as in "3 Failed".
func (c Count) String() string { return fmt.Sprintf("%d %s", c.Count, c.Name) }

// Nodes counts nodes.
type Nodes struct {
	// Total does not include the absent ones.
	Total int `json:"total"`
	// Absent nodes have no Node. Their rules are retained for a while.
	Absent int `json:"absent,omitempty"`
	// Reasons counts them by the reason of the condition Programmed.
	Reasons []Count `json:"reasons,omitempty"`
	// Modes counts them by the mode that runs.
	Modes []Count `json:"modes,omitempty"`
	// Able counts those that could run a mode, among those that report it, by the modes that not all
	// of them run.
	Able []Able `json:"able,omitempty"`
	// New nodes are so new that their agent need not have reported yet.
	New int `json:"new,omitempty"`
	// Audit is how many have enforcement Audit.
	Audit int `json:"audit,omitempty"`
	// Lagging nodes have not applied changes that are older than a minute.
	Lagging int `json:"lagging,omitempty"`
}

// Services counts Services.
type Services struct {
	// Proxied is absent until a controller has counted them.
	Proxied *int32 `json:"proxied,omitempty"`
	// Unrendered is how many the controller cannot render or store.
	Unrendered int `json:"unrendered,omitempty"`
	// RejectedByNode is the highest number that a node rejects.
	RejectedByNode int `json:"rejectedByNode,omitempty"`
	// RetainedByNode is the highest number that a node serves without an object.
	RetainedByNode int `json:"retainedByNode,omitempty"`
}

// Policies counts policies.
type Policies struct {
	Nodes         int `json:"nodes"`
	ReadyNodes    int `json:"readyNodes"`
	Services      int `json:"services"`
	ReadyServices int `json:"readyServices"`
}

// Conntrack is the connection tracking table of a node.
type Conntrack struct {
	Node         string `json:"node"`
	UsagePercent int32  `json:"usagePercent"`
	Entries      int64  `json:"entries"`
	Max          int64  `json:"max"`
	// Drop counts packets dropped because the table was full since the node started.
	Drop int64 `json:"drop,omitempty"`
}

// Rollout is a change or a policy that is not complete.
type Rollout struct {
	// Object is what causes it, as kubectl names it: nodeproxypolicy/edge.
	Object string `json:"object"`
	// Reason is the reason of the object's condition, such as Progressing or Paused.
	Reason string `json:"reason"`
	// Done of Total nodes, or Services, have it. Those of NodeProxy are in the message.
	Done  int32 `json:"done,omitempty"`
	Total int32 `json:"total,omitempty"`
	// Since is when it was last complete.
	Since   metav1.Time `json:"since,omitzero"`
	Message string      `json:"message,omitempty"`
}

const (
	// noReport is the state of a node whose agent has never reported.
	noReport = "NoReport"
	// maxConntrack is how many tables are listed.
	maxConntrack = 3
)

// Of returns the state of a cluster.
func Of(o *cluster.Objects) *Report {
	e := findings.New(o, nil)
	r := &Report{
		TypeMeta: output.Type("ClusterStatus"), Time: metav1.NewTime(o.Time),
		Policies: Policies{Nodes: len(o.NodePolicies), Services: len(o.ServicePolicies)},
	}
	r.countNodes(e)
	for _, p := range o.NodePolicies {
		if meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady) {
			r.Policies.ReadyNodes++
		}
	}
	for _, p := range o.ServicePolicies {
		if meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady) {
			r.Policies.ReadyServices++
		}
	}
	if p := o.NodeProxy; p != nil {
		r.NodeProxy = &NodeProxy{
			CreationTime: p.CreationTimestamp, Deleting: p.DeletionTimestamp != nil, ControllerVersion: p.Status.Version,
			Ready:          meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady),
			AgentsDeployed: meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAgentsDeployed),
		}
		r.Nodes.Lagging = int(p.Status.Nodes.Lagging)
		r.Services.Unrendered = int(p.Status.UnrenderedServices)
		r.UnrenderedServices = p.Status.Unrendered
		if p.Status.Inventory != nil {
			r.Services.Proxied = &p.Status.Inventory.Services
		}
	}
	r.check(e)
	r.Rollouts = rollouts(e)
	r.healthy = len(r.Findings)+len(r.Rollouts)+r.Services.Unrendered == 0
	r.OK = r.healthy && len(r.SkippedChecks) == 0
	r.observed = observed(o)
	return r
}

// observed reports whether the controller has processed the newest settings and policies.
func observed(o *cluster.Objects) bool {
	if o.NodeProxy == nil || o.NodeProxy.Status.ObservedGeneration != o.NodeProxy.Generation {
		return false
	}
	for i := range o.NodePolicies {
		if o.NodePolicies[i].Status.ObservedGeneration != o.NodePolicies[i].Generation {
			return false
		}
	}
	for i := range o.ServicePolicies {
		if o.ServicePolicies[i].Status.ObservedGeneration != o.ServicePolicies[i].Generation {
			return false
		}
	}
	return true
}

// check runs the checks that need no Services.
func (r *Report) check(e *findings.Examination) {
	e.Controller()
	if e.Unreadable(cluster.Pods) == "" {
		e.OwnPods()
	}
	e.NodeStates()
	e.Conntrack()
	r.Findings = findings.Order(slices.DeleteFunc(e.Found, func(f findings.Finding) bool { return elsewhere(e, &f) }))
	r.Notes = e.Notes
	for _, u := range e.Unread {
		checks := []findings.Check{findings.CheckPolicies}
		if u.Kind == cluster.Pods {
			checks = []findings.Check{findings.CheckController, findings.CheckNodes}
		}
		for _, check := range checks {
			r.SkippedChecks = append(r.SkippedChecks, findings.SkippedCheck{Check: check, Message: u.Why})
		}
	}
}

// elsewhere reports whether another part of the report has what a finding reports: the counts
// (Audit as such is healthy), the rollouts, or the findings of the nodes.
func elsewhere(e *findings.Examination, f *findings.Finding) bool {
	if f.Reason == findings.ReasonAudit {
		return true
	}
	if f.Check != findings.CheckController || e.NodeProxy == nil {
		return false
	}
	ready := meta.FindStatusCondition(e.NodeProxy.Status.Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Reason == f.Reason && (isRollout(f.Reason) || f.Reason == v1alpha1.ReasonNodesNotProgrammed)
}

func (r *Report) countNodes(e *findings.Examination) {
	counts := &r.Nodes
	counts.Total, counts.Absent = len(e.Nodes), len(e.NodeRules)-len(e.Nodes)
	reasons, byMode, versions := map[string]int{}, map[string]int{}, map[string]int{}
	for _, n := range e.Nodes {
		reason := noReport
		if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionProgrammed); c != nil {
			reason = c.Reason
			if c.Status == metav1.ConditionTrue {
				r.programmed++
			}
		}
		r.nodes = append(r.nodes, nodeOf(n, reason))
		reasons[reason]++
		byMode[cmp.Or(string(n.Status.Mode), "none yet")]++
		if e.IsNew(n) {
			counts.New++
		}
		if cluster.Audits(n) {
			counts.Audit++
		}
		if agent := n.Status.Agent; agent != nil {
			versions[cmp.Or(agent.Version, "unknown")]++
		}
		if rejected := n.Status.Rejected; rejected != nil {
			r.Services.RejectedByNode = max(r.Services.RejectedByNode, int(rejected.Count))
		}
		r.Services.RetainedByNode = max(r.Services.RetainedByNode, int(n.Status.Retained))
		if c := n.Status.Conntrack; c != nil {
			r.Conntrack = append(r.Conntrack, Conntrack{Node: n.Name, UsagePercent: c.UsagePercent, Entries: c.Entries, Max: c.Max, Drop: c.Drop})
		}
	}
	counts.Able = able(e.Nodes)
	counts.Reasons, counts.Modes, r.AgentVersions = ranked(reasons), ranked(byMode), ranked(versions)
	slices.SortStableFunc(r.Conntrack, func(a, b Conntrack) int {
		return cmp.Or(cmp.Compare(b.UsagePercent, a.UsagePercent), cmp.Compare(b.Drop, a.Drop))
	})
	r.Conntrack = r.Conntrack[:min(len(r.Conntrack), maxConntrack)]
}

// able counts the nodes that could run each mode but the baseline, which all can run, unless all
// that report it run it.
func able(nodes []*v1alpha1.NodeProxyRules) []Able {
	var out []Able
	run := map[v1alpha1.ProxyMode]int{}
	for _, n := range nodes {
		if n.Status.Agent == nil {
			continue
		}
		for _, support := range n.Status.Agent.Modes {
			if support.Mode == modes.Baseline() {
				continue
			}
			i := slices.IndexFunc(out, func(a Able) bool { return a.Mode == support.Mode })
			if i < 0 {
				i = len(out)
				out = append(out, Able{Mode: support.Mode})
			}
			a := &out[i]
			a.Of++
			if n.Status.Mode == support.Mode {
				run[support.Mode]++
			}
			switch {
			case support.Lacks == "":
				a.Nodes++
			case a.Node == "":
				a.Node, a.Lacks = n.Name, support.Lacks
			}
		}
	}
	return slices.DeleteFunc(out, func(a Able) bool { return run[a.Mode] == a.Of })
}

// ranked lists counts, the highest first.
func ranked(counts map[string]int) []Count {
	var list []Count
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, Count{Name: name, Count: counts[name]})
	}
	slices.SortStableFunc(list, func(a, b Count) int { return cmp.Compare(b.Count, a.Count) })
	return list
}

func rollouts(e *findings.Examination) []Rollout {
	var list []Rollout
	if p := e.NodeProxy; p != nil {
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); ready != nil && isRollout(ready.Reason) {
			list = Rollout{Object: "nodeproxy/" + p.Name}.unlessReady(list, p.Status.Conditions)
		}
	}
	onlyNew := e.OnlyNew(e.Nodes)
	for _, p := range e.NodePolicies {
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); onlyNew && ready != nil && ready.Reason == v1alpha1.ReasonNodesNotProgrammed {
			continue // it waits for new nodes, which are a note
		}
		list = Rollout{Object: "nodeproxypolicy/" + p.Name, Done: p.Status.Programmed, Total: p.Status.Nodes}.unlessReady(list, p.Status.Conditions)
	}
	for _, p := range e.ServicePolicies {
		list = Rollout{Object: "serviceproxypolicy/" + p.Name, Done: p.Status.Applied, Total: p.Status.Services}.unlessReady(list, p.Status.Conditions)
	}
	return list
}

// isRollout reports whether NodeProxy is not ready because of a rollout.
func isRollout(reason string) bool {
	return slices.Contains([]string{v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused, v1alpha1.ReasonRolloutHalted}, reason)
}

// unlessReady adds the rollout of an object, unless that is ready and effective.
func (r Rollout) unlessReady(list []Rollout, conditions []metav1.Condition) []Rollout {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if c == nil {
		r.Reason, r.Message = "NotObserved", "no controller has processed this policy yet"
		return append(list, r)
	}
	if c.Status == metav1.ConditionTrue {
		c = findings.Condition(conditions, v1alpha1.ConditionIneffective, metav1.ConditionTrue)
	}
	if c == nil {
		return list
	}
	r.Reason, r.Since, r.Message = c.Reason, c.LastTransitionTime, c.Message
	return append(list, r)
}
