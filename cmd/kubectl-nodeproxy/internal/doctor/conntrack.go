package doctor

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// conntrack looks whether the tables of tracked connections have room.
func (e *examination) conntrack() {
	for _, node := range e.nodes {
		c, pressed := cluster.ConntrackPressed(&node.Status)
		report := node.Status.Conntrack
		switch {
		case report == nil && c == nil:
			continue
		case !pressed:
			if report != nil && report.Drop > 0 {
				e.remark("%s has dropped %s since it started because its connection tracking table was full; there is room now (%d %% in use)", node.Name, output.Plural(int(report.Drop), "packet"), report.UsagePercent)
			}
			continue
		}
		e.add(e.pressure(node, c, report))
	}
}

func (e *examination) pressure(node *v1alpha1.NodeProxyRules, c *metav1.Condition, report *v1alpha1.ConntrackReport) Finding {
	f := Finding{
		Severity: Problem, Name: v1alpha1.ConditionConntrackPressure, Check: CheckConntrack, Nodes: []string{node.Name},
		causes: []string{nodeKey(node.Name, "silent")}, Since: since(c),
		What: "the connection tracking table is nearly full, and a full one drops new connections",
	}
	most := int64(0)
	if report == nil {
		f.What += ": " + cmpMessage(c)
	} else {
		most = report.Max
		f.What += fmt.Sprintf(": %d of %d connections (%d %%), %s dropped and %s not entered since the node started",
			report.Entries, report.Max, report.UsagePercent, output.Plural(int(report.Drop), "packet"), output.Plural(int(report.InsertFailed), "connection"))
	}
	s := v1alpha1.CompleteSettings(&node.Spec.Settings).Conntrack
	if *s.MaxPerCore == 0 {
		f.Do = "nodeproxy leaves the table's size alone (conntrack.maxPerCore is 0): raise the sysctl net.netfilter.nf_conntrack_max on the node"
	} else {
		f.Do = fmt.Sprintf("raise settings.conntrack.min (%d now, such as to %d) or maxPerCore (%d now) of the NodeProxy, or of a NodeProxyPolicy for this node", *s.Min, 2*max(int64(*s.Min), most), *s.MaxPerCore)
	}
	f.Do = e.docs.See(f.Do, "troubleshooting.md#nodeproxyconntrackpressure")
	return f
}
