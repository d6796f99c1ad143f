package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/rules"
)

// freshness checks whether nodes report the current desired state.
func (e *examination) freshness() {
	needs := e.neededFamilies()
	for _, node := range e.Nodes {
		if !cluster.Current(node) {
			continue // its status is stale, which is a finding of its own
		}
		programmed := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed)
		if programmed.Status == metav1.ConditionTrue && !cluster.Audits(node) {
			if lacks := sets.List(needs.Difference(sets.New(node.Status.Families...))); len(lacks) > 0 {
				e.OnNode(node, findings.Finding{
					Severity: findings.Problem, Reason: "FamilyNotProgrammed", Transient: true,
					Message:  fmt.Sprintf("%s is not programmed on the node, but Services have such cluster IPs", strings.Join(lacks, " and ")),
					RemedyOn: e.CheckAgent("check its pod and log", "troubleshooting.md#nodeproxynodenotprogrammed"),
				})
			}
		}
		// The controller detects this sooner, see AgentsLagging.
		if what := e.Lags(node); what != "" {
			e.OnNode(node, findings.Finding{
				Severity: findings.Problem, Reason: "ChangesNotApplied", Key: findings.NodeKey(node.Name, "lags"), Transient: true, Token: node.Status.AppliedResourceVersion,
				Message:  what,
				RemedyOn: e.CheckAgent("check its pod and log", "troubleshooting.md#nodeproxyagentslagging"),
			})
		}
		hasFinding := slices.ContainsFunc(e.Found, func(f findings.Finding) bool {
			return f.Check == findings.CheckNodes && slices.Contains(f.Nodes, node.Name)
		})
		if !hasFinding && e.NodeProxy != nil && e.NodeProxy.DeletionTimestamp == nil {
			e.differs(node)
		}
	}
}

// differs reports any other difference between a node's status and its desired state. Only
// Services with endpoints on the node matter.
func (e *examination) differs(node *v1alpha1.NodeProxyRules) {
	var here []v1alpha1.ServiceProxyRules
	for i := range e.ServiceRules {
		if name, ok := combine.ServiceOf(e.ServiceRules[i].Name); ok && e.localByNode[node.Name][name] != nil {
			here = append(here, e.ServiceRules[i])
		}
	}
	d, err := rules.Reported(node, &cluster.Objects{ServiceRules: here, Time: e.Time})
	if err != nil {
		e.Skip(findings.CheckNodes, err.Error())
		return
	}
	var texts []string
	for _, f := range d.Fields {
		texts = append(texts, fmt.Sprintf("%s: %s desired, %s reported", f.Name, f.Node, f.Other))
	}
	// All other findings of the comparison are findings of the nodes.
	if rejected := node.Status.Rejected; e.Only == nil && rejected != nil && rejected.Count > 0 {
		texts = append(texts, fmt.Sprintf("its kernel rejects %s: %s", text.Count(int(rejected.Count), "Service"), findings.Some(rejected.Examples)))
	}
	changed := []metav1.Object{node}
	for i := range here {
		changed = append(changed, &here[i])
	}
	if len(texts) == 0 || !e.Settled(node, cluster.Fresh, changed...) {
		return
	}
	e.OnNode(node, findings.Finding{
		Severity: findings.Warning, Reason: "StatusDiffers", Transient: true, Causes: []string{findings.KeyInventory, findings.NodeKey(node.Name, "local endpoints")},
		Message: "the node's status differs from the desired state: " + strings.Join(texts, "; "),
		RemedyOn: func(node string) string {
			return e.Docs.See("compare: kubectl nodeproxy diff "+cmp.Or(node, "NODE"), "troubleshooting.md#one-node-differs")
		},
	})
}

// neededFamilies are the IP families of the Services' cluster IPs.
func (e *examination) neededFamilies() sets.Set[string] {
	needs := sets.New[string]()
	for _, rules := range e.ServiceRules {
		if rules.Spec.Released {
			continue
		}
		for _, ip := range rules.Spec.ClusterIPs {
			if strings.Contains(ip, ":") {
				needs.Insert(string(dataplane.IPv6))
			} else {
				needs.Insert(string(dataplane.IPv4))
			}
		}
	}
	return needs
}

// withoutRules reports nodes that run pods but have no rules.
func (e *examination) withoutRules() {
	if e.Unreadable(cluster.Pods) != "" || e.NodeProxy == nil {
		return
	}
	known := sets.New("")
	for _, node := range e.NodeRules {
		known.Insert(node.Name)
	}
	for _, pod := range e.Pods { // one Windows pod reveals a Windows node
		if pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows || pod.Spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows) {
			known.Insert(pod.Spec.NodeName)
		}
	}
	for _, pod := range e.Pods {
		node := pod.Spec.NodeName
		if known.Has(node) || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		known.Insert(node) // reported once
		e.Add(findings.Finding{
			Severity: findings.Problem, Reason: "NodeRulesMissing", Check: findings.CheckNodes, Nodes: []string{node}, Key: findings.NodeKey(node, "rules"), Causes: []string{findings.KeyBehind},
			Message: "pods run on the node, but it has no NodeProxyRules: no agent serves it", Transient: true,
			Remedy: e.Docs.See("check whether a controller runs, which writes them for each Node: "+e.Own.Controllers(), "troubleshooting.md#nodeproxynoderulesmissing"),
		})
	}
}
