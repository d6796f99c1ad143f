package rules

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Difference is the difference between a node's desired state and its report, or between
// two nodes. It does not contain what is equal.
type Difference struct {
	metav1.TypeMeta `json:",inline"`
	// Node is compared with Other: another node, or reported.
	Node   string  `json:"node"`
	Other  string  `json:"other"`
	Equal  bool    `json:"equal"`
	Fields []Field `json:"fields,omitempty"`
	// Findings are problems that the node reports.
	Findings []Finding `json:"findings,omitempty"`
	// Services differ between the two nodes.
	Services []ServiceDifference `json:"services,omitempty"`
	Notes    []string            `json:"notes,omitempty"`

	columns [2]string
}

// Finding is a problem that a node reports, with examples.
type Finding struct {
	Message  string   `json:"message"`
	Examples []string `json:"examples,omitempty"`
}

// Field is a field that differs.
type Field struct {
	Name  string `json:"name"`
	Node  string `json:"node"`
	Other string `json:"other"`
}

// ServiceDifference is the difference of a Service between two nodes.
type ServiceDifference struct {
	Service string           `json:"service"`
	Family  dataplane.Family `json:"family"`
	Fields  []Field          `json:"fields"`
}

func (d *Difference) compared() *Difference {
	d.Equal = len(d.Fields)+len(d.Findings)+len(d.Services) == 0
	return d
}

func (d *Difference) field(name, node, other string) {
	if node != other {
		d.Fields = append(d.Fields, Field{Name: name, Node: cmp.Or(node, "none"), Other: cmp.Or(other, "none")})
	}
}

func (d *Difference) finding(examples []string, format string, args ...any) {
	d.Findings = append(d.Findings, Finding{Message: fmt.Sprintf(format, args...), Examples: examples})
}

// Reported compares the desired state of a node with what it reports.
func Reported(node *v1alpha1.NodeProxyRules, o *cluster.Objects) (*Difference, error) {
	all, err := whole(node, o.ServiceRules)
	if err != nil {
		return nil, err
	}
	d := &Difference{TypeMeta: output.Type("RulesDiff"), Node: node.Name, Other: "reported", columns: [2]string{"DESIRED", "REPORTED"}}
	status := &node.Status
	programmed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
	if programmed == nil {
		d.finding(nil, "no agent has reported on this node yet: check whether one runs there: %s", cluster.Namespace("").Agent(node.Name))
		return d.compared(), nil
	}
	if old := cluster.TooOld(node); old != "" && !meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionAccepted) {
		d.finding(nil, "%s", old) // else the condition reports it
	}
	d.field("settings revision", node.Spec.SettingsRevision, status.SettingsRevision)
	d.field("generation", fmt.Sprint(node.Generation), fmt.Sprint(status.ObservedGeneration))
	d.field("mode", string(all[dataplane.IPv4].Mode), string(status.Mode))
	var needed, served []string
	for _, f := range families() {
		if len(all[f].Services) == 0 {
			continue
		}
		needed = append(needed, string(f))
		if slices.Contains(status.Families, string(f)) {
			served = append(served, string(f))
		}
	}
	d.field("families", strings.Join(needed, ", "), strings.Join(served, ", "))
	d.conditions(status, o.Time)
	lags := o.Lags(node)
	if lags != "" {
		d.finding(nil, "%s", lags)
	}
	d.counts(node, all, o, lags != "")
	if rejected := status.Rejected; rejected != nil && rejected.Count > 0 {
		d.finding(rejected.Examples, "its kernel rejects %s", text.Count(int(rejected.Count), "Service"))
	}
	if status.Retained > 0 {
		d.finding(nil, "it retains the rules of %s whose objects have vanished", text.Count(int(status.Retained), "Service"))
	}
	if diff := status.Difference; diff != nil && diff.Count > 0 {
		d.finding(diff.Examples, "its kernel differs in %s", text.Count(int(diff.Count), "place"))
	}
	if drift := status.Drift; drift != nil && drift.Repairs > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("the agent has repaired external modifications (%s since it started, the last %s ago): %s",
			text.Count(int(drift.Repairs), "repair"), output.Age(o.Time, drift.LastTime.Time), text.Some(drift.Examples, maxExamples)))
	}
	return d.compared(), nil
}

// conditions adds those with an unhealthy status, without repeating the same cause.
func (d *Difference) conditions(status *v1alpha1.NodeProxyRulesStatus, now time.Time) {
	for i := range status.Conditions {
		c := &status.Conditions[i]
		healthy := metav1.ConditionFalse
		switch c.Type {
		case v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed:
			healthy = metav1.ConditionTrue
		case v1alpha1.ConditionModeFallback, v1alpha1.ConditionConflictingProxy, v1alpha1.ConditionConntrackPressure, v1alpha1.ConditionDrifted:
		default:
			continue // of another program
		}
		again := c.Type == v1alpha1.ConditionProgrammed && meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionAccepted) ||
			c.Type == v1alpha1.ConditionConflictingProxy && meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionProgrammed)
		if c.Status != healthy && !again {
			d.finding(nil, "%s is %s for %s, %s: %s", c.Type, c.Status, output.Age(now, c.LastTransitionTime.Time), c.Reason, output.Clip(c.Message, maxMessage))
		}
	}
}

// counts compares counts. Agents may report most of them five minutes late, so these are only
// differences if the node lags.
func (d *Difference) counts(node *v1alpha1.NodeProxyRules, all byFamily, o *cluster.Objects, lags bool) {
	status := &node.Status
	names := sets.New[dataplane.ServiceName]()
	endpoints, local := sets.New[netip.AddrPort](), sets.New[netip.AddrPort]()
	for _, f := range families() {
		for name, svc := range all[f].Services {
			names.Insert(name)
			for _, p := range svc.Ports {
				for _, e := range slices.Concat(p.Cluster, p.Local) {
					endpoints.Insert(e)
					if slices.Contains(p.LocalEndpoints, e) {
						local.Insert(e)
					}
				}
			}
		}
	}
	late := func(what, desired, reported string) {
		switch reported = cmp.Or(reported, "none"); {
		case desired == reported:
		case lags:
			d.finding(nil, "%s: %s desired, %s reported", what, desired, reported)
		default:
			d.Notes = append(d.Notes, fmt.Sprintf("%s: %s desired, %s reported; agents may report such counts five minutes late", what, desired, reported))
		}
	}
	unread := unread(all, o.ServiceRules)
	if len(unread) > 0 { // the node may retain what it could read before
		d.Notes = append(d.Notes, fmt.Sprintf("local endpoints are not compared (%d desired, %d reported), because not all Services are readable: %s",
			len(local), status.LocalEndpoints, text.Some(unread, maxExamples)))
	}
	if status.Retained == 0 { // else the node also counts those of retained Services
		if len(unread) == 0 {
			d.field("local endpoints", fmt.Sprint(len(local)), fmt.Sprint(status.LocalEndpoints))
		}
		late("endpoints", fmt.Sprint(len(endpoints)), fmt.Sprint(status.Endpoints))
	}
	late("Services", fmt.Sprint(len(names)), fmt.Sprint(status.Services-status.Retained))
	if newest := o.Newest(); !lags && !cluster.Applied(node, newest) {
		late("newest ServiceProxyRules (resourceVersion)", newest.ResourceVersion, status.AppliedResourceVersion)
	}
}

// unread lists unusable objects, and why they are.
func unread(all byFamily, services []v1alpha1.ServiceProxyRules) []string {
	var list []string
	for _, o := range services {
		name, _ := combine.ServiceOf(o.Name)
		why := all[dataplane.IPv4].LeftOut[o.Name]
		if why == "" && all[dataplane.IPv4].Services[name] == nil && all[dataplane.IPv6].Services[name] == nil {
			why = strings.Join(all[dataplane.IPv4].Problems[name], "; ")
		}
		if why != "" && !o.Spec.Released {
			list = append(list, o.Name+": "+why)
		}
	}
	return list
}

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
			l.Linef("and %s; -o yaml prints all", text.Count(more, "more Service"))
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
