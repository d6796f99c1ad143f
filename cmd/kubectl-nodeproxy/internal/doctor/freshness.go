package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/rules"
)

// freshness looks whether nodes report what is wanted now, by what each says itself.
func (e *examination) freshness() {
	if e.lacking(cluster.ServiceProxyRules) != "" {
		return // the nodes themselves are told of, and rendering is not looked at
	}
	needs := e.neededFamilies()
	for _, node := range e.nodes {
		if !notes.Current(node) {
			continue // all that it says is old, and that is told
		}
		programmed := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed)
		e.stale(node)
		e.holds(node, programmed)
		if programmed.Status == metav1.ConditionTrue && !notes.Audits(node) {
			e.lacksFamily(node, needs)
		}
		e.lags(node)
		if !e.told(node.Name) && e.NodeProxy != nil && e.NodeProxy.DeletionTimestamp == nil {
			e.differs(node)
		}
	}
}

// told reports whether there is a finding about a node.
func (e *examination) told(node string) bool {
	return slices.ContainsFunc(e.found, func(f Finding) bool {
		return f.Check == CheckNodes && slices.Contains(f.Nodes, node)
	})
}

// stale tells of an agent that reports about older rules of its node.
func (e *examination) stale(node *v1alpha1.NodeProxyRules) {
	what := notes.Stale(node, e.Time)
	if what == "" {
		return
	}
	e.onNode(node, Finding{
		Severity: Problem, Name: "RulesNotInForce", key: nodeKey(node.Name, "programmed"), passing: true, token: fmt.Sprint(node.Status.ObservedGeneration),
		What: what,
		doOn: e.doAgent("see its pod and log", "troubleshooting.md#nodeproxyagentslagging"),
	})
}

// holds tells of Services that a node holds without an object, where its condition is
// about something graver.
func (e *examination) holds(node *v1alpha1.NodeProxyRules, programmed *metav1.Condition) {
	if node.Status.Held == 0 || programmed.Reason == v1alpha1.ReasonHeld {
		return
	}
	e.onNode(node, Finding{
		Severity: Warning, Name: v1alpha1.ReasonHeld, passing: true, causes: []string{keyInventory},
		What: fmt.Sprintf("the node holds the rules of %s whose objects have vanished", output.Plural(int(node.Status.Held), "Service")),
		Do:   e.docs.See("see which Services they are, and why: kubectl nodeproxy status", "troubleshooting.md#nodeproxyservicesheld"),
	})
}

// lacksFamily tells of a family that is not programmed though Services need it.
func (e *examination) lacksFamily(node *v1alpha1.NodeProxyRules, needs []string) {
	lacks := slices.DeleteFunc(slices.Clone(needs), func(f string) bool { return slices.Contains(node.Status.Families, f) })
	if len(lacks) == 0 {
		return
	}
	e.onNode(node, Finding{
		Severity: Problem, Name: "FamilyNotProgrammed", passing: true,
		What: fmt.Sprintf("%s is not programmed on the node, and there are Services with such cluster IPs", strings.Join(lacks, " and ")),
		doOn: e.doAgent("see its pod and log", "troubleshooting.md#nodeproxynodenotprogrammed"),
	})
}

// lags tells of a kernel that does not hold the newest change of Services, long after
// its agent must have reported it. The controller, which knows it sooner, tells too.
func (e *examination) lags(node *v1alpha1.NodeProxyRules) {
	what := notes.Lags(node, e.ServiceRules, e.Time)
	if what == "" {
		return
	}
	e.onNode(node, Finding{
		Severity: Problem, Name: "AgentLags", key: nodeKey(node.Name, "lags"), passing: true, token: node.Status.AppliedResourceVersion,
		What: what,
		doOn: e.doAgent("see its pod and log", "troubleshooting.md#nodeproxyagentslagging"),
	})
}

// differs tells of whatever else a node reports that is not what is wanted. Services
// without endpoints on the node have no part in that.
func (e *examination) differs(node *v1alpha1.NodeProxyRules) {
	members := combine.Members(node.Spec.Services)
	var here []v1alpha1.ServiceProxyRules
	for i := range e.ServiceRules {
		if name, ok := combine.ServiceOf(e.ServiceRules[i].Name); ok && members[name] != nil {
			here = append(here, e.ServiceRules[i])
		}
	}
	d, err := rules.Reported(node, here, e.Time)
	if err != nil {
		e.cannot(CheckNodes, err.Error())
		return
	}
	var says []string
	for _, f := range d.Fields {
		says = append(says, fmt.Sprintf("%s: %s wanted, %s reported", f.Name, f.Node, f.Other))
	}
	// Other findings of the comparison are told of one by one, but for this.
	if refused := node.Status.Refused; e.only == nil && refused != nil && refused.Count > 0 {
		says = append(says, fmt.Sprintf("its kernel refuses %s: %s", output.Plural(int(refused.Count), "Service"), some(refused.Examples)))
	}
	changed := []metav1.Object{node}
	for i := range here {
		changed = append(changed, &here[i])
	}
	if len(says) == 0 || !notes.Settled(node, e.Time, notes.Fresh, changed...) {
		return
	}
	e.onNode(node, Finding{
		Severity: Warning, Name: "ReportsOtherwise", passing: true, causes: []string{keyInventory, "members " + node.Name},
		What: "the node reports something else than is wanted: " + strings.Join(says, "; "),
		doOn: func(node string) string {
			return e.docs.See("compare: kubectl nodeproxy diff "+cmp.Or(node, "NODE"), "troubleshooting.md#one-node-differs")
		},
	})
}

// neededFamilies are those in which some Service has a cluster IP.
func (e *examination) neededFamilies() []string {
	var needs []string
	for _, f := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		if slices.ContainsFunc(e.ServiceRules, func(r v1alpha1.ServiceProxyRules) bool {
			return !r.Spec.Released && slices.ContainsFunc(r.Spec.ClusterIPs, func(ip string) bool {
				return strings.Contains(ip, ":") == (f == dataplane.IPv6)
			})
		}) {
			needs = append(needs, string(f))
		}
	}
	return needs
}
