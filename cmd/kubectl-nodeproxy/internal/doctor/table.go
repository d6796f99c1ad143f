package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

const (
	// foldedShown is how many findings are shown below the one that they follow from.
	foldedShown = 5
	// longest and longestFolded are how much of what is wrong is shown.
	longest, longestFolded = 600, 200
)

// Table prints the report for people.
func (r *Report) Table(w io.Writer) error {
	l := &output.Lines{}
	l.Linef("%s", r.summary())
	for i := range r.Findings {
		r.finding(l, &r.Findings[i])
	}
	if len(r.NotMade) > 0 {
		l.Heading("NOT LOOKED AT")
		for _, why := range r.reasons() {
			l.Linef("  %s: %s", why.checks, why.why)
		}
	}
	if len(r.Exposed) > 0 {
		l.Heading("REACHED FROM OUTSIDE")
		l.Linef("  SERVICE\tBY\tADDRESSES\tPORTS\tCLIENTS\tPOLICIES")
		for _, x := range r.Exposed {
			l.Linef("  %s\t%s\t%s\t%s\t%s\t%s", x.Service, x.Kind, x.Addresses, strings.Join(x.Ports, ","), x.Clients, cmp.Or(strings.Join(x.By, ","), "<none>"))
		}
	}
	if len(r.Remarks) > 0 {
		l.Heading("GOOD TO KNOW")
		for _, remark := range r.Remarks {
			l.Linef("  %s", output.Clip(remark, longest))
		}
	}
	return l.Write(w)
}

// reason is why some checks could not be made.
type reason struct{ checks, why string }

// reasons are why checks could not be made, each once.
func (r *Report) reasons() []reason {
	var all []reason
	for _, n := range r.NotMade {
		i := slices.IndexFunc(all, func(o reason) bool { return o.why == n.Why })
		if i < 0 {
			all = append(all, reason{string(n.Check), n.Why})
			continue
		}
		all[i].checks += ", " + string(n.Check)
	}
	return all
}

// summary says in a line how it is.
func (r *Report) summary() string {
	what := "Services"
	switch {
	case r.Service != "" && r.Services == nil:
		what = fmt.Sprintf("Service %s, if there is one by that name, which could not be seen,", r.Service)
	case r.Service != "":
		what = "Service " + r.Service
	case r.Services != nil:
		what = output.Plural(*r.Services, "Service")
	}
	what += " on " + output.Plural(r.Nodes, "node")
	problems, warnings := tally(r.Findings)
	switch {
	case problems+warnings > 0:
		return fmt.Sprintf("%s: %s, %s", what, output.Plural(problems, "problem"), output.Plural(warnings, "warning"))
	case len(r.NotMade) > 0:
		return what + ": nothing is wrong as far as could be seen"
	}
	return what + ": nothing is wrong"
}

func tally(found []Finding) (problems, warnings int) {
	for _, f := range flat(found) {
		if f.Severity == Problem {
			problems++
		} else {
			warnings++
		}
	}
	return problems, warnings
}

func (r *Report) finding(l *output.Lines, f *Finding) {
	l.Heading(strings.ToUpper(string(f.Severity)) + " " + f.Name + f.where() + r.since(f))
	l.Linef("  %s", output.Clip(f.What, longest))
	l.Linef("  do: %s", f.Do)
	if len(f.Therefore) == 0 {
		return
	}
	l.Linef("  therefore:")
	folded := flat(f.Therefore)
	for i, t := range folded {
		if i == foldedShown && len(folded) > foldedShown+1 {
			l.Linef("  - and %d more; -o yaml has all", len(folded)-i)
			break
		}
		l.Linef("  - %s%s: %s", t.Name, t.where(), output.Clip(t.What, longestFolded))
	}
}

// flat are findings and what follows from them.
func flat(found []Finding) []Finding {
	var out []Finding
	for i := range found {
		out = append(append(out, found[i]), flat(found[i].Therefore)...)
	}
	return out
}

// where a finding is, for people.
func (f *Finding) where() string {
	var parts []string
	if f.Service != "" {
		parts = append(parts, "Service "+f.Service)
	}
	if f.Policy != "" {
		parts = append(parts, f.Policy)
	}
	switch {
	case len(f.Nodes) == 1:
		parts = append(parts, "node "+f.Nodes[0])
	case len(f.Nodes) > 1:
		parts = append(parts, "nodes "+some(f.Nodes))
	}
	if len(parts) == 0 {
		return ""
	}
	return " of " + strings.Join(parts, ", ")
}

func (r *Report) since(f *Finding) string {
	if f.Since == nil {
		return ""
	}
	return fmt.Sprintf(" since %s (%s)", f.Since.UTC().Format(time.RFC3339), output.Age(r.Time.Time, f.Since.Time))
}
