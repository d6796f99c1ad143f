// Package status says how a cluster does: all of it in a few lines, and then what is
// not well. It is pure: objects in, a report out.
package status

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
)

// Report is how a cluster does.
type Report struct {
	// Time is when it was looked at.
	Time metav1.Time `json:"time"`
	// Well: all was looked at, and there is nothing to tell of that should be.
	Well bool `json:"well"`
	// NodeProxy is absent while nodeproxy is not switched on.
	NodeProxy *NodeProxy `json:"nodeProxy,omitempty"`
	// Agents are the releases of the agents.
	Agents []Count `json:"agents,omitempty"`
	// Nodes counts the nodes.
	Nodes Nodes `json:"nodes"`
	// Services counts the Services.
	Services Services `json:"services"`
	// Policies counts the policies of both kinds.
	Policies Policies `json:"policies"`
	// Conntrack are the nodes whose connection tracking tables are fullest, the
	// fullest first.
	Conntrack []Conntrack `json:"conntrack,omitempty"`
	// Problems are what is not well, the worst first.
	Problems []Problem `json:"problems,omitempty"`
	// Changes are those on their way, of NodeProxy and of policies.
	Changes []Change `json:"changes,omitempty"`
	// Refused are Services that the controller refuses: the newest ten.
	Refused []v1alpha1.RefusedService `json:"refused,omitempty"`
	// Remarks are what else is good to know.
	Remarks []string `json:"remarks,omitempty"`
	// NotRead says what could not be looked at, and why.
	NotRead []string `json:"notRead,omitempty"`

	docs hints.Docs
	// seemsWell: there is nothing to tell of in what was looked at.
	seemsWell bool
}

// NodeProxy is the object that switches nodeproxy on.
type NodeProxy struct {
	Created metav1.Time `json:"created"`
	// Deleting: it is being deleted.
	Deleting bool `json:"deleting,omitempty"`
	// Controller is the release of the controller; empty: none has worked on it.
	Controller string `json:"controller,omitempty"`
	// Ready and AgentsDeployed are its conditions.
	Ready          *metav1.Condition `json:"ready,omitempty"`
	AgentsDeployed *metav1.Condition `json:"agentsDeployed,omitempty"`
}

// Count is how many there are of something.
type Count struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

// Nodes counts nodes.
type Nodes struct {
	// Total is how many there are, but for the absent ones.
	Total int `json:"total"`
	// Absent are those whose Node is gone; their rules are kept for a while.
	Absent int `json:"absent,omitempty"`
	// States counts them by the reason of the condition Programmed.
	States []Count `json:"states,omitempty"`
	// Modes counts them by the mode that runs.
	Modes []Count `json:"modes,omitempty"`
	// New are so new that their agent need not have reported yet.
	New int `json:"new,omitempty"`
	// Audit only compare.
	Audit int `json:"audit,omitempty"`
	// Lagging have not applied changes older than a minute.
	Lagging int `json:"lagging,omitempty"`
}

// Services counts Services.
type Services struct {
	// Proxied is how many there are to be proxied, as far as a controller has told.
	// Absent: none has.
	Proxied *int32 `json:"proxied,omitempty"`
	// Refused cannot be rendered or stored.
	Refused int `json:"refused,omitempty"`
	// RefusedByNodes is how many are refused by the node that refuses most.
	RefusedByNodes int `json:"refusedByNodes,omitempty"`
	// Held is how many the node that holds most of them holds without an object.
	Held int `json:"held,omitempty"`
}

// Policies counts policies.
type Policies struct {
	Nodes         int `json:"nodes"`
	ReadyNodes    int `json:"readyNodes"`
	Services      int `json:"services"`
	ReadyServices int `json:"readyServices"`
}

// Conntrack is a node's connection tracking table.
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
	// maxConntrack is how many tables are told of.
	maxConntrack = 3
)

// Of returns how a cluster does.
func Of(o *cluster.Objects, docs hints.Docs) *Report {
	r := &Report{Time: metav1.NewTime(o.Time), docs: docs}
	for _, u := range o.Unread {
		why := u.Why
		if u.Kind == cluster.Pods {
			why = "whether a controller runs, and how the agents' pods are: " + why
		}
		r.NotRead = append(r.NotRead, why)
	}
	nodes := present(o.NodeRules)
	r.Remarks = remarks(o, nodes)
	r.Nodes = countNodes(nodes, o.Time)
	r.Nodes.Absent = len(o.NodeRules) - len(nodes)
	r.Agents = agents(nodes)
	r.Conntrack = fullest(nodes)
	r.Policies = countPolicies(o)
	for _, n := range nodes {
		if refused := n.Status.Refused; refused != nil {
			r.Services.RefusedByNodes = max(r.Services.RefusedByNodes, int(refused.Count))
		}
		r.Services.Held = max(r.Services.Held, int(n.Status.Held))
	}
	if p := o.NodeProxy; p != nil {
		r.NodeProxy = &NodeProxy{
			Created: p.CreationTimestamp, Deleting: p.DeletionTimestamp != nil, Controller: p.Status.Version,
			Ready:          meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady),
			AgentsDeployed: meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAgentsDeployed),
		}
		r.Nodes.Lagging = int(p.Status.Nodes.Lagging)
		r.Services.Refused = int(p.Status.RefusedServices)
		r.Refused = p.Status.Refused
		if p.Status.Inventory != nil {
			r.Services.Proxied = &p.Status.Inventory.Services
		}
	}
	r.Problems = problems(o, nodes, docs)
	r.Changes = changes(o, nodes)
	r.seemsWell = o.NodeProxy != nil && len(r.Problems) == 0 && len(r.Changes) == 0 && r.Services.Refused == 0
	r.Well = r.seemsWell && len(r.NotRead) == 0
	return r
}

// present are the nodes whose Node exists.
func present(rules []v1alpha1.NodeProxyRules) []*v1alpha1.NodeProxyRules {
	var nodes []*v1alpha1.NodeProxyRules
	for i := range rules {
		if _, absent := rules[i].Annotations[v1alpha1.AnnotationNodeAbsentSince]; !absent {
			nodes = append(nodes, &rules[i])
		}
	}
	return nodes
}

func countNodes(nodes []*v1alpha1.NodeProxyRules, now time.Time) Nodes {
	counts := Nodes{Total: len(nodes)}
	states, modes := map[string]int{}, map[string]int{}
	for _, n := range nodes {
		states[state(n)]++
		modes[cmp.Or(string(n.Status.Mode), "none yet")]++
		if notes.IsNew(n, now) {
			counts.New++
		}
		if notes.Audits(n) {
			counts.Audit++
		}
	}
	counts.States, counts.Modes = ranked(states), ranked(modes)
	return counts
}

// state is the reason of the condition Programmed.
func state(n *v1alpha1.NodeProxyRules) string {
	c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionProgrammed)
	if c == nil {
		return noReport
	}
	return c.Reason
}

func agents(nodes []*v1alpha1.NodeProxyRules) []Count {
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
