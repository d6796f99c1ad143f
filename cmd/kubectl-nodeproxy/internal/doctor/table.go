package doctor

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Table prints the report in human-readable form.
func (r *Report) Table(w io.Writer) error {
	l := &output.Lines{}
	l.Linef("%s", r.summary())
	for i := range r.Findings {
		r.Findings[i].Print(l, r.Time.Time)
	}
	findings.PrintSkipped(l, r.SkippedChecks)
	if len(r.Exposure) > 0 {
		l.Heading("REACHABLE FROM OUTSIDE")
		l.Linef("  SERVICE\tTYPE\tADDRESSES\tPORTS\tCLIENTS\tPOLICIES")
		for _, x := range r.Exposure {
			l.Linef("  %s\t%s\t%s\t%s\t%s\t%s", x.Service, x.Type, x.Addresses, strings.Join(x.Ports, ","), x.Clients, cmp.Or(strings.Join(x.Policies, ","), "<none>"))
		}
	}
	findings.PrintNotes(l, r.Notes)
	return l.Write(w)
}

// summary is the result in one line.
func (r *Report) summary() string {
	what := "Services"
	switch {
	case r.Service != "" && r.Services == nil:
		what = fmt.Sprintf("Service %s (not readable)", r.Service)
	case r.Service != "":
		what = "Service " + r.Service
	case r.Services != nil:
		what = output.Plural(*r.Services, "Service")
	}
	what += " on " + output.Plural(r.Nodes, "node")
	problems, warnings := findings.Tally(r.Findings)
	switch {
	case problems+warnings > 0:
		return fmt.Sprintf("%s: %s, %s", what, output.Plural(problems, "problem"), output.Plural(warnings, "warning"))
	case len(r.SkippedChecks) > 0:
		return what + ": no problems found, but some checks were skipped"
	}
	return what + ": no problems found"
}
