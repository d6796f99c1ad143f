package status

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
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
	// RejectedServices are the newest ten Services that the controller rejects.
	RejectedServices []v1alpha1.UnrenderedService `json:"rejectedServices,omitempty"`
	// SkippedChecks could not run.
	SkippedChecks []findings.SkippedCheck `json:"skippedChecks,omitempty"`
	// Notes are not problems.
	Notes []string `json:"notes,omitempty"`

	healthy bool // as far as checks ran
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
	// Rejected is how many the controller cannot render or store.
	Rejected int `json:"rejected,omitempty"`
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

const (
	// noReport is the state of a node whose agent has never reported.
	noReport = "NoReport"
	// maxConntrack is how many tables are listed.
	maxConntrack = 3
)

// Of returns the state of a cluster.
func Of(o *cluster.Objects, docs hints.Docs) *Report {
	e := findings.New(o, docs, nil)
	r := &Report{
		TypeMeta: output.Type("ClusterStatus"), Time: metav1.NewTime(o.Time),
		Nodes: countNodes(e), AgentVersions: agentVersions(e.Nodes), Conntrack: fullest(e.Nodes), Policies: countPolicies(o),
	}
	for _, n := range e.Nodes {
		if rejected := n.Status.Rejected; rejected != nil {
			r.Services.RejectedByNode = max(r.Services.RejectedByNode, int(rejected.Count))
		}
		r.Services.RetainedByNode = max(r.Services.RetainedByNode, int(n.Status.Retained))
	}
	if p := o.NodeProxy; p != nil {
		r.NodeProxy = &NodeProxy{
			CreationTime: p.CreationTimestamp, Deleting: p.DeletionTimestamp != nil, ControllerVersion: p.Status.Version,
			Ready:          meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady),
			AgentsDeployed: meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAgentsDeployed),
		}
		r.Nodes.Lagging = int(p.Status.Nodes.Lagging)
		r.Services.Rejected = int(p.Status.UnrenderedServices)
		r.RejectedServices = p.Status.Unrendered
		if p.Status.Inventory != nil {
			r.Services.Proxied = &p.Status.Inventory.Services
		}
	}
	r.check(e)
	r.Rollouts = rollouts(o, e.Nodes)
	r.healthy = len(r.Findings)+len(r.Rollouts)+r.Services.Rejected == 0
	r.OK = r.healthy && len(r.SkippedChecks) == 0
	return r
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

// elsewhere reports whether another part of the report has what a finding says: the counts
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

func countNodes(e *findings.Examination) Nodes {
	counts := Nodes{Total: len(e.Nodes), Absent: len(e.NodeRules) - len(e.Nodes)}
	reasons, modes := map[string]int{}, map[string]int{}
	for _, n := range e.Nodes {
		reason := noReport
		if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionProgrammed); c != nil {
			reason = c.Reason
		}
		reasons[reason]++
		modes[cmp.Or(string(n.Status.Mode), "none yet")]++
		if e.IsNew(n) {
			counts.New++
		}
		if notes.Audits(n) {
			counts.Audit++
		}
	}
	counts.Reasons, counts.Modes = ranked(reasons), ranked(modes)
	return counts
}

func agentVersions(nodes []*v1alpha1.NodeProxyRules) []Count {
	versions := map[string]int{}
	for _, n := range nodes {
		if n.Status.Agent != nil {
			versions[cmp.Or(n.Status.Agent.Version, "unknown")]++
		}
	}
	return ranked(versions)
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

func fullest(nodes []*v1alpha1.NodeProxyRules) []Conntrack {
	var tables []Conntrack
	for _, n := range nodes {
		if c := n.Status.Conntrack; c != nil {
			tables = append(tables, Conntrack{Node: n.Name, UsagePercent: c.UsagePercent, Entries: c.Entries, Max: c.Max, Drop: c.Drop})
		}
	}
	slices.SortStableFunc(tables, func(a, b Conntrack) int {
		return cmp.Or(cmp.Compare(b.UsagePercent, a.UsagePercent), cmp.Compare(b.Drop, a.Drop))
	})
	return tables[:min(len(tables), maxConntrack)]
}

func countPolicies(o *cluster.Objects) Policies {
	counts := Policies{Nodes: len(o.NodePolicies), Services: len(o.ServicePolicies)}
	for i := range o.NodePolicies {
		if meta.IsStatusConditionTrue(o.NodePolicies[i].Status.Conditions, v1alpha1.ConditionReady) {
			counts.ReadyNodes++
		}
	}
	for i := range o.ServicePolicies {
		if meta.IsStatusConditionTrue(o.ServicePolicies[i].Status.Conditions, v1alpha1.ConditionReady) {
			counts.ReadyServices++
		}
	}
	return counts
}
