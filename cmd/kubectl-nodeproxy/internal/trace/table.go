package trace

import (
	"fmt"
	"io"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Table prints the report in human-readable form.
func (r *Report) Table(w io.Writer) error {
	l := &output.Lines{}
	l.Linef("%s → %s, mode %s", r.sender(), r.target(), r.Mode)
	for _, note := range r.Notes {
		l.Linef("! %s", note)
	}
	l.Heading("SHARE\tSOURCE\tPATH")
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		path := strings.Join(o.Path, " → ")
		if o.Pod != "" {
			path += " (" + o.Pod + ")"
		}
		l.Linef("%s\t%s\t%s", share(o.Share), o.source(), path)
	}
	printed := map[string]bool{}
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Message == "" || printed[o.Message] {
			continue
		}
		printed[o.Message] = true
		l.Heading(fmt.Sprintf("%s: %s", o.Fate, o.Message))
		if rule := o.rule(); rule != "" {
			l.Linef("by: %s", rule)
		}
	}
	if found := r.lookups(); len(found) > 0 {
		l.Heading("LOOKUPS")
		for _, line := range found {
			l.Linef("%s", line)
		}
	}
	if r.AffinitySeconds > 0 {
		l.Heading(fmt.Sprintf("Session affinity: a client keeps its endpoint until it has been idle for %d s. This trace is for a new client.", r.AffinitySeconds))
	}
	return l.Write(w)
}

// maxLookups is how many lookups are printed.
const maxLookups = 30

// lookups are those in maps and sets of nf_tables, of all outcomes.
func (r *Report) lookups() []string {
	var out []string
	known := map[string]bool{}
	for i := range r.Outcomes {
		for _, s := range r.Outcomes[i].Steps {
			if line := s.String(); s.IsLookup() && !known[line] {
				known[line] = true
				out = append(out, line)
			}
		}
	}
	if more := len(out) - maxLookups; more > 0 {
		out = append(out[:maxLookups], fmt.Sprintf("and %d more: -o json", more))
	}
	return out
}

func (r *Report) sender() string {
	what := map[tracer.Origin]string{
		tracer.Process: "a process on " + r.Node,
		tracer.Pod:     "a pod on " + r.Node,
		tracer.Outside: "outside " + r.Node,
	}[r.Origin]
	if address := r.Source.String(); address != r.From {
		return fmt.Sprintf("%s (%s, %s)", r.From, address, what)
	}
	return fmt.Sprintf("%s (%s)", r.From, what)
}

func (r *Report) target() string {
	to := fmt.Sprintf("%s/%s", r.Destination, strings.ToLower(string(r.Protocol)))
	if r.Service == nil {
		return to + " (not a Service)"
	}
	return fmt.Sprintf("%s (%s)", to, r.Service.Text())
}

// source is what happens to the client's address.
func (o *Outcome) source() string {
	switch {
	case o.Fate == tracer.Rejected || o.Fate == tracer.Dropped:
		return "-"
	case o.Masqueraded:
		return "masqueraded"
	}
	return "preserved"
}

// rule is the one that rejects or drops the packet, as iptables-save or nft prints it; empty: none
// does.
func (o *Outcome) rule() string {
	if len(o.Steps) == 0 || o.Fate != tracer.Rejected && o.Fate != tracer.Dropped {
		return ""
	}
	last := o.Steps[len(o.Steps)-1]
	switch last.Kind {
	case tracer.VirtualServer:
		return fmt.Sprintf("virtual server %s: %s", last.Chain, last.Rule)
	case tracer.NFTablesRule:
		return fmt.Sprintf("table %s, chain %s: %s", last.Table, last.Chain, last.Rule)
	}
	return fmt.Sprintf("-t %s -A %s %s", last.Table, last.Chain, last.Rule)
}

// share formats a probability in percent.
func share(part float64) string {
	text := strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.2f", 100*part), "0"), ".")
	return text + "%"
}
