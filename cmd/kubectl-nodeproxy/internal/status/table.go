package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

const (
	// maxExamples is how many findings of one reason are printed in full, and maxNames how
	// many names are listed.
	maxExamples = 3
	maxNames    = 5
	// maxCounts is how many counts are printed in a line.
	maxCounts = 8
	// maxMessage is how much of a message is printed.
	maxMessage = 500
	// maxRollouts is how many rollouts are printed.
	maxRollouts = 15
)

// Table prints the report in human-readable form.
func (r *Report) Table(w io.Writer) error { return r.print(w, &output.Lines{}) }

// Wide prints the report with each node, and nothing left out.
func (r *Report) Wide(w io.Writer) error { return r.print(w, &output.Lines{Full: true}) }

// node is a line about a node.
type node struct {
	name, reason, mode, agent, conntrack string
	services, rejected, retained         int
}

func nodeOf(n *v1alpha1.NodeProxyRules, reason string) node {
	out := node{
		name: n.Name, reason: reason, mode: cmp.Or(string(n.Status.Mode), "-"), agent: "-", conntrack: "-",
		services: int(n.Status.Services), retained: int(n.Status.Retained),
	}
	if a := n.Status.Agent; a != nil {
		out.agent = cmp.Or(a.Version, "unknown")
	}
	if c := n.Status.Conntrack; c != nil {
		out.conntrack = fmt.Sprintf("%d%%", c.UsagePercent)
	}
	if rejected := n.Status.Rejected; rejected != nil {
		out.rejected = int(rejected.Count)
	}
	return out
}

func (r *Report) print(w io.Writer, l *output.Lines) error {
	r.overview(l)
	if l.Full && len(r.nodes) > 0 {
		l.Heading("NODES IN DETAIL")
		l.Linef("NODE\tREASON\tMODE\tAGENT\tSERVICES\tREJECTED\tRETAINED\tCONNTRACK")
		for _, n := range r.nodes {
			l.Linef("%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s", n.name, n.reason, n.mode, n.agent, n.services, n.rejected, n.retained, n.conntrack)
		}
	}
	r.findings(l, findings.Problem, "PROBLEMS")
	r.findings(l, findings.Warning, "WARNINGS")
	r.rollouts(l)
	if len(r.UnrenderedServices) > 0 {
		l.Heading("SERVICES NOT RENDERED")
		for _, s := range r.UnrenderedServices {
			l.Linef("%s/%s: %s", s.Namespace, s.Name, l.Clip(s.Message, maxMessage))
		}
		if more := r.Services.Unrendered - len(r.UnrenderedServices); more > 0 {
			l.Linef("and %d more: kubectl get events -A --field-selector involvedObject.kind=Service", more)
		}
	}
	findings.PrintSkipped(l, r.SkippedChecks)
	if r.healthy {
		l.Heading(r.verdict())
	}
	findings.PrintNotes(l, r.Notes)
	return l.Write(w)
}

// verdict is the last line about a healthy cluster.
func (r *Report) verdict() string {
	line := "Everything is healthy"
	if !r.OK {
		line = "No problems found, but some checks were skipped"
	}
	var except []string
	if n := r.Nodes.Audit; n > 0 {
		except = append(except, text.Count(n, "node")+" with enforcement Audit")
	}
	if n := r.Nodes.New; n > 0 {
		except = append(except, "no report yet from "+text.Count(n, "new node"))
	}
	if len(except) > 0 {
		line += "; " + strings.Join(except, ", ")
	}
	return line + "."
}

func (r *Report) overview(l *output.Lines) {
	p := r.NodeProxy
	switch {
	case p == nil:
		l.Linef("NODEPROXY\tnone")
	case p.Deleting:
		l.Linef("NODEPROXY\tbeing deleted")
	default:
		l.Linef("NODEPROXY\tenabled for %s", output.Age(r.Time.Time, p.CreationTime.Time))
	}
	if p != nil && p.ControllerVersion != "" {
		l.Linef("CONTROLLER\t%s", p.ControllerVersion)
	}
	agents := counts(r.AgentVersions)
	if p != nil && p.AgentsDeployed != nil {
		agents = strings.TrimPrefix(agents+"; ", "; ") + "deployment: " + p.AgentsDeployed.Reason
	}
	if agents != "" {
		l.Linef("AGENTS\t%s", agents)
	}
	nodes := fmt.Sprint(r.Nodes.Total)
	if len(r.Nodes.Reasons) > 0 {
		nodes += ": " + counts(r.Nodes.Reasons)
	}
	if r.Nodes.Absent > 0 {
		nodes += fmt.Sprintf("; %d more whose Node is gone", r.Nodes.Absent)
	}
	l.Linef("NODES\t%s", nodes)
	if r.Nodes.Total > 0 {
		modes := []string{counts(r.Nodes.Modes)}
		if r.Nodes.Audit > 0 {
			modes = append(modes, fmt.Sprintf("%d with enforcement Audit", r.Nodes.Audit))
		}
		for _, a := range r.Nodes.Able {
			modes = append(modes, a.String())
		}
		l.Linef("MODES\t%s", strings.Join(modes, "; "))
	}
	if p != nil {
		l.Linef("SERVICES\t%s", r.services())
	}
	if p := r.Policies; p.Nodes+p.Services > 0 {
		l.Linef("POLICIES\t%d for nodes (%d ready), %d for Services (%d ready)", p.Nodes, p.ReadyNodes, p.Services, p.ReadyServices)
	}
	if len(r.Conntrack) > 0 {
		var tables []string
		for _, c := range r.Conntrack {
			line := fmt.Sprintf("%s %d%%", c.Node, c.UsagePercent)
			if c.Drop > 0 {
				line += fmt.Sprintf(" (%s dropped since it started)", text.Count(int(c.Drop), "packet"))
			}
			tables = append(tables, line)
		}
		l.Linef("CONNTRACK\tfullest: %s", strings.Join(tables, ", "))
	}
}

func (r *Report) services() string {
	text := "not counted yet"
	if n := r.Services.Proxied; n != nil {
		text = fmt.Sprintf("%d proxied", *n)
	}
	if n := r.Services.Unrendered; n > 0 {
		text += fmt.Sprintf("; %d not rendered", n)
	}
	if n := r.Services.RejectedByNode; n > 0 {
		text += fmt.Sprintf("; up to %d rejected by a node", n)
	}
	if n := r.Services.RetainedByNode; n > 0 {
		text += fmt.Sprintf("; up to %d retained by a node", n)
	}
	return text
}

func counts(list []Count) string { return text.Some(list, maxCounts) }

// findings prints the findings of a severity, those of one reason together.
func (r *Report) findings(l *output.Lines, severity findings.Severity, heading string) {
	groups := map[string][]findings.Finding{}
	var reasons []string
	for _, f := range r.Findings {
		if f.Severity != severity {
			continue
		}
		if groups[f.Reason] == nil {
			reasons = append(reasons, f.Reason)
		}
		groups[f.Reason] = append(groups[f.Reason], f)
	}
	if len(reasons) == 0 {
		return
	}
	l.Heading(heading)
	for _, reason := range reasons {
		r.group(l, groups[reason])
	}
}

// group prints the findings of one reason, the oldest first.
func (r *Report) group(l *output.Lines, group []findings.Finding) {
	// Unknown times come first: they may be the oldest.
	slices.SortStableFunc(group, func(a, b findings.Finding) int { return a.Since.Compare(b.Since.Time) })
	heading := group[0].Reason
	var nodes []string
	var consequences []findings.Finding
	for _, f := range group {
		nodes = append(nodes, f.Nodes...)
		consequences = append(consequences, f.Consequences...)
	}
	slices.Sort(nodes)
	if n := len(slices.Compact(nodes)); n > 0 {
		heading += ", " + text.Count(n, "node")
	}
	if since := group[0].Since; !since.IsZero() {
		heading += " for " + output.Age(r.Time.Time, since.Time)
	}
	l.Linef("%s", heading)
	var remedies []string
	shown := maxExamples
	if l.Full {
		shown = len(group)
	}
	for _, f := range group[:min(len(group), shown)] {
		message := l.Clip(f.Message, maxMessage)
		if at := places(f); len(at) > 0 {
			message = text.Some(at, maxNames) + ": " + message
		}
		l.Linef("  %s", message)
		if !slices.Contains(remedies, f.Remedy) {
			remedies = append(remedies, f.Remedy)
		}
	}
	if more := len(group) - shown; more > 0 {
		l.Linef("  and %d more: %s", more, text.Some(places(group[shown:]...), maxNames))
	}
	for _, remedy := range remedies {
		l.Linef("  remedy: %s", remedy)
	}
	findings.PrintConsequences(l, consequences)
}

// places are the nodes and Services that findings are about.
func places(group ...findings.Finding) []string {
	var list []string
	for _, f := range group {
		for _, node := range f.Nodes {
			if f.Service != "" {
				node += " (Service " + f.Service + ")"
			}
			list = append(list, node)
		}
	}
	return list
}

func (r *Report) rollouts(l *output.Lines) {
	if len(r.Rollouts) == 0 {
		return
	}
	l.Heading("INCOMPLETE CHANGES AND POLICIES")
	for _, c := range r.Rollouts[:min(len(r.Rollouts), maxRollouts)] {
		text := c.Object + ": " + c.Reason
		if c.Total > 0 {
			text += fmt.Sprintf(", %d of %d", c.Done, c.Total)
		}
		if !c.Since.IsZero() {
			text += ", for " + output.Age(r.Time.Time, c.Since.Time)
		}
		l.Linef("%s", text)
		if c.Message != "" {
			l.Linef("  %s", l.Clip(c.Message, maxMessage))
		}
	}
	if more := len(r.Rollouts) - maxRollouts; more > 0 {
		l.Linef("and %d more: kubectl get nodeproxypolicies,serviceproxypolicies", more)
	}
}
