package doctor

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// foldedShown is how many findings are shown below the one that they follow from.
const foldedShown = 5

// Table prints the report for people.
func (r *Report) Table(w io.Writer) error {
	out := &bytes.Buffer{}
	fmt.Fprintln(out, r.summary())
	for i := range r.Findings {
		fmt.Fprintln(out)
		r.finding(out, &r.Findings[i])
	}
	if len(r.NotMade) > 0 {
		fmt.Fprintln(out, "\nNot looked at:")
		for _, n := range r.NotMade {
			fmt.Fprintf(out, "  %s: %s\n", n.Check, n.Why)
		}
	}
	if len(r.Exposed) > 0 {
		fmt.Fprintln(out, "\nReached from outside:")
		table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "  SERVICE\tBY\tADDRESSES\tPORTS\tCLIENTS\tPOLICIES")
		for _, x := range r.Exposed {
			fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\n", x.Service, x.Kind, x.Addresses, strings.Join(x.Ports, ","), x.Clients, cmp.Or(strings.Join(x.By, ","), "<none>"))
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if len(r.Remarks) > 0 {
		fmt.Fprintln(out, "\nGood to know:")
		for _, remark := range r.Remarks {
			fmt.Fprintf(out, "  %s\n", remark)
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}

// summary says in a line how it is.
func (r *Report) summary() string {
	what := fmt.Sprintf("%s on %s", plural(r.Services, "Service"), plural(r.Nodes, "node"))
	if r.Service != "" {
		what = fmt.Sprintf("Service %s on %s", r.Service, plural(r.Nodes, "node"))
	}
	problems, warnings := tally(r.Findings)
	switch {
	case problems+warnings > 0:
		return fmt.Sprintf("%s: %s, %s", what, plural(problems, "problem"), plural(warnings, "warning"))
	case len(r.NotMade) > 0:
		return what + ": nothing is wrong as far as could be seen"
	}
	return what + ": nothing is wrong"
}

func tally(found []Finding) (problems, warnings int) {
	for i := range found {
		if found[i].Severity == Problem {
			problems++
		} else {
			warnings++
		}
		p, w := tally(found[i].Therefore)
		problems, warnings = problems+p, warnings+w
	}
	return problems, warnings
}

func (r *Report) finding(out io.Writer, f *Finding) {
	fmt.Fprintf(out, "%s %s%s%s\n", strings.ToUpper(string(f.Severity)), f.Name, f.where(), r.since(f))
	fmt.Fprintf(out, "  %s\n", f.What)
	fmt.Fprintf(out, "  do: %s\n", f.Do)
	if len(f.Therefore) == 0 {
		return
	}
	fmt.Fprintln(out, "  therefore:")
	folded := flat(f.Therefore)
	for i, t := range folded {
		if i == foldedShown && len(folded) > foldedShown+1 {
			fmt.Fprintf(out, "  - and %d more; -o yaml has all\n", len(folded)-i)
			break
		}
		fmt.Fprintf(out, "  - %s%s: %s\n", t.Name, t.where(), t.What)
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
	return fmt.Sprintf(" since %s (%s)", f.Since.UTC().Format(time.RFC3339), duration.HumanDuration(max(0, r.Time.Sub(f.Since.Time))))
}
