package doctor

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Report is the result of an examination.
type Report struct {
	metav1.TypeMeta `json:",inline"`
	// Time is when the objects were read.
	Time metav1.Time `json:"time"`
	// OK: all checks ran, and there are no findings.
	OK bool `json:"ok"`
	// Service (namespace/name) is the examined one; empty: all.
	Service string `json:"service,omitempty"`
	// Namespace is that of the examined Services; empty: all.
	Namespace string `json:"namespace,omitempty"`
	// Services and Nodes are how many there are. Services is nil if they could not be read.
	Services *int `json:"services,omitempty"`
	Nodes    int  `json:"nodes"`
	// Findings are sorted: what explains most comes first.
	Findings []findings.Finding `json:"findings"`
	// SkippedChecks could not run, or not completely.
	SkippedChecks []findings.SkippedCheck `json:"skippedChecks,omitempty"`
	// Exposure is what clients outside the cluster can reach.
	Exposure []Exposure `json:"exposure"`
	// Notes are not problems.
	Notes []string `json:"notes,omitempty"`
}

// Exposure is a way by which clients outside the cluster reach a Service.
type Exposure struct {
	Service string `json:"service"`
	// Type is NodePort, ExternalIP, LoadBalancerIP or HealthCheckNodePort.
	Type string `json:"type"`
	// Addresses are human-readable; Ports are port/protocol.
	Addresses string   `json:"addresses"`
	Ports     []string `json:"ports"`
	// Clients are the allowed source ranges.
	Clients string `json:"clients"`
	// Policies are the ServiceProxyPolicies that apply.
	Policies []string `json:"policies,omitempty"`
}

// Table prints the report in human-readable form.
func (r *Report) Table(w io.Writer) error { return r.print(w, &output.Lines{}) }

// Wide prints the report without leaving anything out.
func (r *Report) Wide(w io.Writer) error { return r.print(w, &output.Lines{Full: true}) }

func (r *Report) print(w io.Writer, l *output.Lines) error {
	l.Linef("%s", r.summary())
	for i := range r.Findings {
		r.Findings[i].Print(l, r.Time.Time)
	}
	findings.PrintSkipped(l, r.SkippedChecks)
	if len(r.Exposure) > 0 {
		l.Heading("REACHABLE FROM OUTSIDE")
		printExposure(l, "  ", r.Exposure)
	}
	findings.PrintNotes(l, r.Notes)
	return l.Write(w)
}

func printExposure(l *output.Lines, indent string, exposure []Exposure) {
	l.Linef("%sSERVICE\tTYPE\tADDRESSES\tPORTS\tCLIENTS\tPOLICIES", indent)
	for _, x := range exposure {
		l.Linef("%s%s\t%s\t%s\t%s\t%s\t%s", indent, x.Service, x.Type, x.Addresses, strings.Join(x.Ports, ","), x.Clients, cmp.Or(strings.Join(x.Policies, ","), "<none>"))
	}
}

// ExposureReport is what clients outside the cluster can reach.
type ExposureReport struct {
	metav1.TypeMeta `json:",inline"`
	Time            metav1.Time             `json:"time"`
	Exposure        []Exposure              `json:"exposure"`
	SkippedChecks   []findings.SkippedCheck `json:"skippedChecks,omitempty"`
}

// ExposureOf returns the part of an examination that is about exposure.
func ExposureOf(r *Report) *ExposureReport {
	out := &ExposureReport{TypeMeta: output.Type("ExposureReport"), Time: r.Time, Exposure: r.Exposure}
	for _, s := range r.SkippedChecks {
		if s.Check == findings.CheckExposure {
			out.SkippedChecks = append(out.SkippedChecks, s)
		}
	}
	return out
}

// Table prints the report in human-readable form.
func (r *ExposureReport) Table(w io.Writer) error {
	l := &output.Lines{}
	if len(r.Exposure) > 0 {
		printExposure(l, "", r.Exposure)
	} else {
		l.Linef("Clients outside the cluster can reach no Service.")
	}
	findings.PrintSkipped(l, r.SkippedChecks)
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
		what = text.Count(*r.Services, "Service")
	}
	if r.Namespace != "" {
		what += " in namespace " + r.Namespace
	}
	what += " on " + text.Count(r.Nodes, "node")
	problems, warnings := findings.Tally(r.Findings)
	switch {
	case problems+warnings > 0:
		return fmt.Sprintf("%s: %s, %s", what, text.Count(problems, "problem"), text.Count(warnings, "warning"))
	case len(r.SkippedChecks) > 0:
		return what + ": no problems found, but some checks were skipped"
	}
	return what + ": no problems found"
}
