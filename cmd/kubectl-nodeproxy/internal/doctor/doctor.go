package doctor

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
)

// Question is what the doctor is asked.
type Question struct {
	// Service is the one to look at; nil: all.
	Service *types.NamespacedName
	// Again reads the objects once more, after so long. It is asked only where
	// something is seen that may be about to change.
	Again func(after time.Duration) (*cluster.Objects, error)
	// Docs are the documents of the plugin, and its release.
	Docs hints.Docs
	// Trace follows packets through what nodes should hold.
	Trace Trace
}

// ErrNoService is wrapped where the Service that is asked for is not there.
var ErrNoService = errors.New("there is no such Service")

// Examine makes all checks on the objects of a cluster.
func Examine(objects *cluster.Objects, q Question) (*Report, error) {
	first, err := examine(objects, &q)
	if err != nil {
		return nil, err
	}
	if !first.anyPassing() {
		return first.finish(), nil
	}
	objects, err = q.Again(first.patience())
	if err != nil {
		first.leaveUncertain(err)
		return first.finish(), nil
	}
	second, err := examine(objects, &q)
	if err != nil {
		return nil, err
	}
	second.keepSeenTwice(first)
	return second.finish(), nil
}

// examination is one look at the objects of a cluster.
type examination struct {
	*view
	trace   Trace
	report  *Report
	found   []Finding
	notMade map[Check]string
	// buts are the nodes on which something besides what is wanted could not be done.
	buts map[string][]string
}

func examine(objects *cluster.Objects, q *Question) (*examination, error) {
	v, err := newView(objects, q)
	if err != nil {
		return nil, err
	}
	e := &examination{view: v, trace: q.Trace, notMade: map[Check]string{}, buts: map[string][]string{}, report: &Report{
		Time: metav1.NewTime(objects.Time.UTC()), Nodes: len(v.nodes),
		Exposed: []Exposure{},
	}}
	if v.lacking(cluster.Services) == "" {
		e.report.Services = new(len(objects.Services))
	}
	e.clocks()
	if q.Service != nil {
		e.report.Service = q.Service.String()
		e.about()
	}
	for _, check := range []struct {
		name  Check
		needs []cluster.Kind
		do    func()
	}{
		{CheckController, []cluster.Kind{cluster.NodeProxies}, e.controller},
		{CheckController, []cluster.Kind{cluster.Pods}, e.running},
		{CheckDNS, []cluster.Kind{cluster.Services, cluster.EndpointSlices}, e.dns},
		{CheckNodes, []cluster.Kind{cluster.NodeProxyRules}, e.nodeStates},
		{CheckRendering, []cluster.Kind{cluster.Services, cluster.EndpointSlices, cluster.ServiceProxyRules}, e.rendering},
		{CheckEndpoints, []cluster.Kind{cluster.Services, cluster.EndpointSlices}, e.endpoints},
		{CheckTrafficPolicy, []cluster.Kind{cluster.ServiceProxyRules, cluster.NodeProxyRules}, e.trafficPolicies},
		{CheckHairpin, []cluster.Kind{cluster.ServiceProxyRules, cluster.NodeProxyRules}, e.hairpin},
		{CheckConntrack, []cluster.Kind{cluster.NodeProxyRules}, e.conntrack},
		{CheckPolicies, []cluster.Kind{cluster.NodeProxyPolicies, cluster.ServiceProxyPolicies}, e.policies},
		{CheckExposure, []cluster.Kind{cluster.Services, cluster.ServiceProxyRules, cluster.NodeProxyRules}, e.exposure},
	} {
		if why := v.lacking(check.needs...); why != "" {
			e.cannot(check.name, why)
			continue
		}
		check.do()
	}
	return e, nil
}

// apart is how far two clocks may be apart before that is worth telling: requests take
// their time, and the API server tells full seconds.
const apart = 30 * time.Second

// clocks compares the clock of this machine with the API server's.
func (e *examination) clocks() {
	if e.Ahead.Abs() <= apart {
		return
	}
	how := "ahead of"
	if e.Ahead < 0 {
		how = "behind"
	}
	e.remark("the clock of this machine is %s %s the API server's: ages here are by the API server's; find out which of the two is wrong, as tokens and certificates go by both",
		duration.HumanDuration(e.Ahead.Abs()), how)
}

// cannot notes that a check, or a part of it, could not be made.
func (e *examination) cannot(check Check, why string) {
	if e.notMade[check] == "" {
		e.notMade[check] = why
	}
}

func (e *examination) add(f Finding) { e.found = append(e.found, f) }

func (e *examination) remark(format string, args ...any) {
	e.report.Remarks = append(e.report.Remarks, fmt.Sprintf(format, args...))
}

func (e *examination) anyPassing() bool {
	for i := range e.found {
		if e.found[i].passing {
			return true
		}
	}
	return false
}

// keepSeenTwice drops what may pass and was not seen the first time, or has moved on
// since.
func (e *examination) keepSeenTwice(first *examination) {
	seen := map[string]bool{}
	for i := range first.found {
		if f := &first.found[i]; f.passing {
			seen[f.identity()] = true
		}
	}
	kept := e.found[:0]
	for _, f := range e.found {
		if !f.passing || seen[f.identity()] {
			kept = append(kept, f)
		}
	}
	e.found = kept
}

// finish completes the report.
func (e *examination) finish() *Report {
	e.behind()
	e.followController()
	e.report.Findings = order(e.found)
	if e.report.Findings == nil {
		e.report.Findings = []Finding{}
	}
	for _, check := range checks() {
		if why := e.notMade[check]; why != "" {
			e.report.NotMade = append(e.report.NotMade, NotMade{check, why})
		}
	}
	return e.report
}
