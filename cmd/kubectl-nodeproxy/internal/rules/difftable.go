package rules

import (
	"fmt"
	"io"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// maxServices is how many differing Services are printed.
const maxServices = 50

// Table prints the differences in human-readable form.
func (d *Difference) Table(w io.Writer) error {
	l := &output.Lines{}
	if d.Equal {
		text := fmt.Sprintf("Node %s reports its desired state.", d.Node)
		if d.columns[1] == d.Other {
			text = fmt.Sprintf("The nodes %s and %s do not differ.", d.Node, d.Other)
		}
		l.Linef("%s", text)
	}
	if len(d.Fields) > 0 {
		l.Linef("FIELD\t%s\t%s", d.columns[0], d.columns[1])
		for _, f := range d.Fields {
			l.Linef("%s\t%s\t%s", f.Name, f.Node, f.Other)
		}
	}
	if len(d.Findings) > 0 {
		l.Heading("REPORTED")
		for _, f := range d.Findings {
			l.Linef("%s", f.Message)
			for _, e := range f.Examples {
				l.Linef("  %s", output.Clip(e, maxMessage))
			}
		}
	}
	if len(d.Services) > 0 {
		l.Heading(fmt.Sprintf("SERVICE\tFAMILY\tPORT\t%s\t%s", d.columns[0], d.columns[1]))
		for i := range d.Services[:min(len(d.Services), maxServices)] {
			s := &d.Services[i]
			for _, f := range s.Fields {
				l.Linef("%s\t%s\t%s\t%s\t%s", s.Service, s.Family, f.Name, f.Node, f.Other)
			}
		}
		if more := len(d.Services) - maxServices; more > 0 {
			l.Linef("and %s; -o yaml prints all", output.Plural(more, "more Service"))
		}
	}
	if len(d.Notes) > 0 {
		l.Heading("NOTES")
		for _, n := range d.Notes {
			l.Linef("%s", n)
		}
	}
	return l.Write(w)
}
