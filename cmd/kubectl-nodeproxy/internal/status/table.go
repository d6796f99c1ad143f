package status

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

const (
	// maxExamples is how many nodes with a problem are told of one by one, and
	// maxNames how many others are named.
	maxExamples = 3
	maxNames    = 5
	// maxMessage is how much of a message is printed.
	maxMessage = 500
	// maxChanges is how many changes are told of.
	maxChanges = 15
)

// Table prints the report for people.
func (r *Report) Table(w io.Writer) error {
	l := &output.Lines{}
	r.glance(l)
	if len(r.Problems) > 0 {
		l.Heading("NOT WELL")
		for i := range r.Problems {
			r.problem(l, &r.Problems[i])
		}
	}
	r.changes(l)
	if len(r.Refused) > 0 {
		l.Heading("SERVICES THAT THE CONTROLLER REFUSES")
		for i := range r.Refused {
			l.Linef("%s/%s: %s", r.Refused[i].Namespace, r.Refused[i].Name, output.Clip(r.Refused[i].Message, maxMessage))
		}
		if more := r.Services.Refused - len(r.Refused); more > 0 {
			l.Linef("and %d more: kubectl get events -A --field-selector involvedObject.kind=Service", more)
		}
	}
	if len(r.NotRead) > 0 {
		l.Heading("NOT LOOKED AT")
		for _, text := range r.NotRead {
			l.Linef("%s", text)
		}
	}
	if r.seemsWell {
		l.Heading(r.well())
	}
	if len(r.Remarks) > 0 {
		l.Heading("GOOD TO KNOW")
		for _, text := range r.Remarks {
			l.Linef("%s", text)
		}
	}
	return l.Write(w)
}

// well is said where there is nothing to tell of.
func (r *Report) well() string {
	text := "All is well"
	if !r.Well {
		text = "Well as far as could be seen"
	}
	var but []string
	if n := r.Nodes.Audit; n == 1 {
		but = append(but, "1 node only compares (Audit)")
	} else if n > 1 {
		but = append(but, fmt.Sprintf("%d nodes only compare (Audit)", n))
	}
	if n := r.Nodes.New; n > 0 {
		but = append(but, "no agent has reported yet from "+output.Plural(n, "new node"))
	}
	if len(but) > 0 {
		text += "; " + strings.Join(but, ", ")
	}
	return text + "."
}

// glance prints the lines that are always there.
func (r *Report) glance(l *output.Lines) {
	switch p := r.NodeProxy; {
	case p == nil && r.Nodes.Total == 0:
		l.Linef("nodeproxy is installed and not switched on: there is no NodeProxy; how to create one: beside kube-proxy %s, else %s",
			r.docs.URL("migration.md#1-install-beside-kube-proxy"), r.docs.URL("install.md#install"))
		return
	case p == nil:
		l.Linef("NODEPROXY\tnone")
	default:
		text := "on for " + output.Age(r.Time.Time, p.Created.Time)
		if p.Deleting {
			text = "being deleted"
		}
		l.Linef("NODEPROXY\t%s", text)
		if p.Controller != "" {
			l.Linef("CONTROLLER\t%s", p.Controller)
		}
	}
	agents := counts(r.Agents)
	if p := r.NodeProxy; p != nil && p.AgentsDeployed != nil {
		agents = strings.TrimPrefix(agents+"; ", "; ") + "deployment: " + p.AgentsDeployed.Reason
	}
	if agents != "" {
		l.Linef("AGENTS\t%s", agents)
	}
	l.Linef("NODES\t%s", r.nodes())
	if r.Nodes.Total > 0 {
		modes := counts(r.Nodes.Modes)
		if r.Nodes.Audit > 0 {
			modes += fmt.Sprintf("; %d with enforcement Audit", r.Nodes.Audit)
		}
		l.Linef("MODES\t%s", modes)
	}
	if r.NodeProxy != nil {
		l.Linef("SERVICES\t%s", r.services())
	}
	if p := r.Policies; p.Nodes+p.Services > 0 {
		l.Linef("POLICIES\t%d for nodes (%d ready), %d for Services (%d ready)", p.Nodes, p.ReadyNodes, p.Services, p.ReadyServices)
	}
	if len(r.Conntrack) > 0 {
		var tables []string
		for _, c := range r.Conntrack {
			text := fmt.Sprintf("%s %d%%", c.Node, c.UsagePercent)
			if c.Drop > 0 {
				text += fmt.Sprintf(" (%s dropped since it started)", output.Plural(int(c.Drop), "packet"))
			}
			tables = append(tables, text)
		}
		l.Linef("CONNTRACK\tfullest: %s", strings.Join(tables, ", "))
	}
}

func (r *Report) nodes() string {
	text := fmt.Sprintf("%d", r.Nodes.Total)
	if len(r.Nodes.States) > 0 {
		text += ": " + counts(r.Nodes.States)
	}
	if r.Nodes.Absent > 0 {
		text += fmt.Sprintf("; and %d whose Node is gone", r.Nodes.Absent)
	}
	return text
}

func (r *Report) services() string {
	text := "how many are proxied no controller has told yet"
	if n := r.Services.Proxied; n != nil {
		text = fmt.Sprintf("%d proxied", *n)
	}
	if n := r.Services.Refused; n > 0 {
		text += fmt.Sprintf("; %d refused by the controller", n)
	}
	if n := r.Services.RefusedByNodes; n > 0 {
		text += fmt.Sprintf("; up to %d refused by a node", n)
	}
	if n := r.Services.Held; n > 0 {
		text += fmt.Sprintf("; up to %d held by a node", n)
	}
	return text
}

func counts(list []Count) string {
	texts := make([]string, len(list))
	for i, c := range list {
		texts[i] = fmt.Sprintf("%d %s", c.Count, c.Name)
	}
	return output.Some(texts, maxNames+maxExamples)
}

func (r *Report) problem(l *output.Lines, p *Problem) {
	age := ""
	if !p.Since.IsZero() {
		age = " for " + output.Age(r.Time.Time, p.Since.Time)
	}
	if len(p.Nodes) == 0 {
		l.Linef("%s%s", p.What, age)
		l.Linef("  %s", output.Clip(p.Message, maxMessage))
		return
	}
	l.Linef("%s, %s%s", p.What, output.Plural(len(p.Nodes), "node"), age)
	same := bySameMessage(p.Nodes)
	for _, group := range same[:min(len(same), maxExamples)] {
		age := ""
		if since := group[0].Since; !since.IsZero() {
			age = ", for " + output.Age(r.Time.Time, since.Time)
		}
		l.Linef("  %s%s: %s", output.Some(names(group), maxNames), age, output.Clip(group[0].Message, maxMessage))
	}
	if len(same) > maxExamples {
		rest := slices.Concat(same[maxExamples:]...)
		l.Linef("  and %d more: %s", len(rest), output.Some(names(rest), maxNames))
	}
}

// bySameMessage puts nodes together of which the same is told.
func bySameMessage(nodes []NodeProblem) [][]NodeProblem {
	var groups [][]NodeProblem
	at := map[string]int{}
	for _, n := range nodes {
		i, found := at[n.Message]
		if !found {
			i = len(groups)
			at[n.Message] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], n)
	}
	return groups
}

func names(nodes []NodeProblem) []string {
	list := make([]string, len(nodes))
	for i := range nodes {
		list[i] = nodes[i].Name
	}
	return list
}

func (r *Report) changes(l *output.Lines) {
	if len(r.Changes) == 0 {
		return
	}
	l.Heading("CHANGES AND POLICIES THAT ARE NOT DONE")
	for i := range r.Changes[:min(len(r.Changes), maxChanges)] {
		c := &r.Changes[i]
		text := c.Of + ": " + c.Reason
		if c.Total > 0 {
			text += fmt.Sprintf(", %d of %d", c.Done, c.Total)
		}
		if !c.Since.IsZero() {
			text += ", for " + output.Age(r.Time.Time, c.Since.Time)
		}
		l.Linef("%s", text)
		if c.Message != "" {
			l.Linef("  %s", output.Clip(c.Message, maxMessage))
		}
	}
	if more := len(r.Changes) - maxChanges; more > 0 {
		l.Linef("and %d more: kubectl get nodeproxypolicies,serviceproxypolicies", more)
	}
}
