package findings

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Reasons of findings about nodes with enforcement Audit: rules that differ are worse than
// Audit alone, and rules that no proxy maintains are the worst.
const (
	ReasonAudit             = "Audit"
	ReasonAuditDiffers      = v1alpha1.ReasonAuditDiffers
	ReasonAuditWithoutProxy = "AuditWithoutProxy"
)

// enforcement reports nodes with enforcement Audit.
func (e *Examination) enforcement(node *v1alpha1.NodeProxyRules) {
	if !notes.Audits(node) {
		return
	}
	programmed := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed)
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
		f.Reason = ReasonAuditDiffers
	}
	if notes.Unmaintained(node) {
		f.Severity, f.Reason, f.Message = Problem, ReasonAuditWithoutProxy, Message(programmed)
		f.Remedy = e.Docs.See("start the previous proxy again, or set enforcement to Enforce ("+field+")", "migration.md#2-compare")
	}
	if d := node.Status.Difference; d != nil && d.Count > 0 {
		f.Message += fmt.Sprintf("; %s, such as %s", output.Plural(int(d.Count), "difference"), Some(d.Examples[:min(1, len(d.Examples))]))
	}
	e.OnNode(node, f)
}
