package findings

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Conntrack checks whether connection tracking tables are nearly full.
func (e *Examination) Conntrack() {
	for _, node := range e.Nodes {
		c, nearlyFull := cluster.ConntrackNearlyFull(&node.Status)
		report := node.Status.Conntrack
		switch {
		case report == nil && c == nil:
		case nearlyFull:
			e.Add(e.pressure(node, c, report))
		case report != nil && report.Drop > 0:
			e.Notef("%s has dropped %s since it started because its connection tracking table was full; now %d%% are in use", node.Name, output.Plural(int(report.Drop), "packet"), report.UsagePercent)
		}
	}
}

func (e *Examination) pressure(node *v1alpha1.NodeProxyRules, c *metav1.Condition, report *v1alpha1.ConntrackReport) Finding {
	f := Finding{
		Severity: Problem, Reason: v1alpha1.ConditionConntrackPressure, Check: CheckConntrack, Nodes: []string{node.Name},
		Causes: []string{NodeKey(node.Name, "silent")}, Since: Since(c),
		Message: "the connection tracking table is nearly full, and a full one drops new connections",
	}
	most := int64(0)
	if report == nil {
		f.Message += ": " + Message(c)
	} else {
		most = report.Max
		f.Message += fmt.Sprintf(": %d of %d connections (%d%%), %s dropped and %s not inserted since the node started",
			report.Entries, report.Max, report.UsagePercent, output.Plural(int(report.Drop), "packet"), output.Plural(int(report.InsertFailed), "connection"))
	}
	s := v1alpha1.CompleteSettings(&node.Spec.Settings).Conntrack
	if *s.MaxPerCore == 0 {
		f.Remedy = "nodeproxy does not set the table's size (conntrack.maxPerCore is 0): raise the sysctl net.netfilter.nf_conntrack_max on the node"
	} else {
		f.Remedy = fmt.Sprintf("raise settings.conntrack.min (now %d, for example to %d) or maxPerCore (now %d) of the NodeProxy, or of a NodeProxyPolicy for this node", *s.Min, 2*max(int64(*s.Min), most), *s.MaxPerCore)
	}
	f.Remedy = e.Docs.See(f.Remedy, "troubleshooting.md#nodeproxyconntrackpressure")
	return f
}
