package doctor

import (
	"errors"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Question is what to examine, and how.
type Question struct {
	// Service is the one to examine; nil: all.
	Service *types.NamespacedName
	// Again reads the objects again after a while. It is called only if a finding may be
	// transient.
	Again func(after time.Duration) (*cluster.Objects, error)
	// Docs is the documentation of the plugin's release.
	Docs hints.Docs
	// Trace traces packets through the desired rules of nodes.
	Trace Trace
}

// ErrNoService is wrapped if the Service to examine does not exist.
var ErrNoService = errors.New("no such Service")

// Examine runs all checks on the objects of a cluster.
func Examine(objects *cluster.Objects, q Question) (*Report, error) {
	first, err := examine(objects, &q)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(first.Found, func(f findings.Finding) bool { return f.Transient }) {
		return first.finish(), nil
	}
	objects, err = q.Again(first.patience())
	if err != nil {
		first.dropUnconfirmed(err)
		return first.finish(), nil
	}
	second, err := examine(objects, &q)
	if err != nil {
		return nil, err
	}
	second.retainConfirmed(first)
	return second.finish(), nil
}

// examination is one look at the objects of a cluster.
type examination struct {
	*view
	trace  Trace
	report *Report
}

func examine(objects *cluster.Objects, q *Question) (*examination, error) {
	v, err := newView(objects, q)
	if err != nil {
		return nil, err
	}
	e := &examination{view: v, trace: q.Trace, report: &Report{
		TypeMeta: output.Type("DoctorReport"), Time: metav1.NewTime(objects.Time.UTC()), Nodes: len(v.Nodes), Exposure: []Exposure{},
	}}
	if v.Unreadable(cluster.Services) == "" {
		e.report.Services = new(len(objects.Services))
	}
	e.clocks()
	if q.Service != nil {
		e.report.Service = q.Service.String()
		e.about()
	}
	for _, check := range []struct {
		name  findings.Check
		needs []cluster.Kind
		do    func()
	}{
		{findings.CheckController, []cluster.Kind{cluster.NodeProxies}, e.controller},
		{findings.CheckController, []cluster.Kind{cluster.Pods}, e.OwnPods},
		{findings.CheckDNS, []cluster.Kind{cluster.Services, cluster.EndpointSlices}, e.dns},
		{findings.CheckNodes, []cluster.Kind{cluster.NodeProxyRules}, e.nodes},
		{findings.CheckRendering, []cluster.Kind{cluster.Services, cluster.EndpointSlices, cluster.ServiceProxyRules}, e.rendering},
		{findings.CheckEndpoints, []cluster.Kind{cluster.Services, cluster.EndpointSlices}, e.endpoints},
		{findings.CheckTrafficPolicy, []cluster.Kind{cluster.ServiceProxyRules, cluster.NodeProxyRules}, e.trafficPolicies},
		{findings.CheckHairpin, []cluster.Kind{cluster.ServiceProxyRules, cluster.NodeProxyRules}, e.hairpin},
		{findings.CheckConntrack, []cluster.Kind{cluster.NodeProxyRules}, e.Conntrack},
		{findings.CheckPolicies, []cluster.Kind{cluster.NodeProxyPolicies, cluster.ServiceProxyPolicies}, e.policies},
		{findings.CheckExposure, []cluster.Kind{cluster.Services, cluster.ServiceProxyRules, cluster.NodeProxyRules}, e.exposure},
	} {
		if why := v.Unreadable(check.needs...); why != "" {
			e.Skip(check.name, why)
			continue
		}
		check.do()
	}
	return e, nil
}

func (e *examination) controller() {
	e.Controller()
	if e.NodeProxy != nil {
		e.inventory()
		e.rejectedServices()
	}
}

func (e *examination) nodes() {
	e.NodeStates()
	e.freshness()
	e.withoutRules()
}

// maxClockSkew is how far two clocks may be apart without a note: requests take time, and
// the API server reports full seconds.
const maxClockSkew = 30 * time.Second

// clocks compares the clock of this machine with the API server's.
func (e *examination) clocks() {
	if e.Ahead.Abs() <= maxClockSkew {
		return
	}
	how := "ahead of"
	if e.Ahead < 0 {
		how = "behind"
	}
	e.Notef("the clock of this machine is %s %s the API server's, which all ages here refer to: correct the wrong one, because tokens and certificates depend on both",
		duration.HumanDuration(e.Ahead.Abs()), how)
}

// retainConfirmed drops findings that may be transient and that the first examination did
// not find, or found in another state.
func (e *examination) retainConfirmed(first *examination) {
	seen := map[string]bool{}
	for i := range first.Found {
		if f := &first.Found[i]; f.Transient {
			seen[f.Identity()] = true
		}
	}
	e.Found = slices.DeleteFunc(e.Found, func(f findings.Finding) bool { return f.Transient && !seen[f.Identity()] })
}

// finish completes the report.
func (e *examination) finish() *Report {
	e.behind()
	e.followController()
	e.report.Findings = findings.Order(e.Found)
	if e.report.Findings == nil {
		e.report.Findings = []findings.Finding{}
	}
	e.report.SkippedChecks, e.report.Notes = e.Skipped(), e.Notes
	e.report.OK = len(e.report.Findings)+len(e.report.SkippedChecks) == 0
	return e.report
}
