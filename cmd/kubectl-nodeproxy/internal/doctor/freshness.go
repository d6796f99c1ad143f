package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/rules"
)

// freshness checks whether nodes report the current desired state.
func (e *examination) freshness() {
	if e.Unreadable(cluster.ServiceProxyRules) != "" {
		return // the check of rendering is skipped, and says why
	}
	needs := e.neededFamilies()
	for _, node := range e.Nodes {
		if !notes.Current(node) {
			continue // its status is stale, which is a finding of its own
		}
		programmed := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed)
		if programmed.Status == metav1.ConditionTrue && !notes.Audits(node) {
			e.lacksFamily(node, needs)
		}
		e.lags(node)
		if !e.hasFinding(node.Name) && e.NodeProxy != nil && e.NodeProxy.DeletionTimestamp == nil {
			e.differs(node)
		}
	}
}

// hasFinding reports whether there is a finding about a node.
func (e *examination) hasFinding(node string) bool {
	return slices.ContainsFunc(e.Found, func(f findings.Finding) bool {
		return f.Check == findings.CheckNodes && slices.Contains(f.Nodes, node)
	})
}

// lacksFamily reports an IP family that is not programmed although Services need it.
func (e *examination) lacksFamily(node *v1alpha1.NodeProxyRules, needs []string) {
	lacks := slices.DeleteFunc(slices.Clone(needs), func(f string) bool { return slices.Contains(node.Status.Families, f) })
	if len(lacks) == 0 {
		return
	}
	e.OnNode(node, findings.Finding{
		Severity: findings.Problem, Reason: "FamilyNotProgrammed", Transient: true,
		Message:  fmt.Sprintf("%s is not programmed on the node, but Services have such cluster IPs", strings.Join(lacks, " and ")),
		RemedyOn: e.CheckAgent("check its pod and log", "troubleshooting.md#nodeproxynodenotprogrammed"),
	})
}

// lags reports a kernel that lacks a change of Services long after its agent must have
// reported it. The controller detects it sooner, see AgentsLagging.
func (e *examination) lags(node *v1alpha1.NodeProxyRules) {
	what := notes.Lags(node, e.ServiceRules, e.Time)
	if what == "" {
		return
	}
	e.OnNode(node, findings.Finding{
		Severity: findings.Problem, Reason: "ChangesNotApplied", Key: findings.NodeKey(node.Name, "lags"), Transient: true, Token: node.Status.AppliedResourceVersion,
		Message:  what,
		RemedyOn: e.CheckAgent("check its pod and log", "troubleshooting.md#nodeproxyagentslagging"),
	})
}

// differs reports any other difference between a node's status and its desired state. Only
// Services with endpoints on the node matter.
func (e *examination) differs(node *v1alpha1.NodeProxyRules) {
	members := combine.Members(node.Spec.LocalEndpoints)
	var here []v1alpha1.ServiceProxyRules
	for i := range e.ServiceRules {
		if name, ok := combine.ServiceOf(e.ServiceRules[i].Name); ok && members[name] != nil {
			here = append(here, e.ServiceRules[i])
		}
	}
	d, err := rules.Reported(node, here, e.Time)
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
		texts = append(texts, fmt.Sprintf("its kernel rejects %s: %s", output.Plural(int(rejected.Count), "Service"), findings.Some(rejected.Examples)))
	}
	changed := []metav1.Object{node}
	for i := range here {
		changed = append(changed, &here[i])
	}
	if len(texts) == 0 || !notes.Settled(node, e.Time, notes.Fresh, changed...) {
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

// withoutRules reports nodes that run pods but have no rules.
func (e *examination) withoutRules() {
	if e.Unreadable(cluster.Pods) != "" || e.NodeProxy == nil {
		return
	}
	known := map[string]bool{}
	for i := range e.NodeRules {
		known[e.NodeRules[i].Name] = true
	}
	for i := range e.Pods { // one Windows pod reveals a Windows node
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
			e.Add(findings.Finding{
				Severity: findings.Problem, Reason: "NodeRulesMissing", Check: findings.CheckNodes, Nodes: []string{node}, Key: findings.NodeKey(node, "rules"), Causes: []string{findings.KeyBehind},
				Message: "pods run on the node, but it has no NodeProxyRules: no agent serves it", Transient: true,
				Remedy: e.Docs.See("check whether a controller runs, which writes them for each Node: "+e.Own.Controllers(), "troubleshooting.md#nodeproxynoderulesmissing"),
			})
		}
	}
}
