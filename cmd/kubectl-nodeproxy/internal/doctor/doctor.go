package doctor

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Question is what to examine, and how.
type Question struct {
	// Service is the one to examine; nil: all.
	Service *types.NamespacedName
	// Namespace is that of the Services to examine; empty: all.
	Namespace string
	// Again reads the objects again after a while. It is called only if a finding may be
	// transient.
	Again func(after time.Duration) (*cluster.Objects, error)
	// Trace traces packets through the desired rules of nodes.
	Trace Trace
}

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

// examination is one look at the objects of a cluster, indexed.
type examination struct {
	*findings.Examination
	trace  Trace
	report *Report

	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName][]*discoveryv1.EndpointSlice
	rules    map[types.NamespacedName]*v1alpha1.ServiceProxyRules
	// holders are the Services that own an address and port.
	holders combine.Holders
	pods    map[string][]*corev1.Pod // by namespace
	labels  map[string]map[string]string
	// localByNode are the local endpoints in the rules of the nodes.
	localByNode map[string]map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints
	// servicePolicies are ServicePolicies as the controller reads them, in that order.
	servicePolicies []policies.ServicePolicy
	// shapes resolves the overrides of Services; nil if policies could not be read.
	shapes *policies.Services
}

// index returns the objects, to be examined.
func index(o *cluster.Objects, q *Question) *examination {
	e := &examination{
		Examination: findings.New(o, q.Service),
		trace:       q.Trace,
		report: &Report{
			TypeMeta: output.Type("DoctorReport"), Time: metav1.NewTime(o.Time.UTC()), Exposure: []Exposure{},
		},
		holders:     combine.HoldersOf(o.ServiceRules),
		services:    map[types.NamespacedName]*corev1.Service{},
		slices:      map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
		rules:       map[types.NamespacedName]*v1alpha1.ServiceProxyRules{},
		pods:        map[string][]*corev1.Pod{},
		labels:      map[string]map[string]string{},
		localByNode: map[string]map[dataplane.ServiceName]*v1alpha1.ServiceLocalEndpoints{},
	}
	e.Namespace, e.report.Namespace = q.Namespace, q.Namespace
	for i := range o.Services {
		e.services[named(&o.Services[i])] = &o.Services[i]
	}
	for i := range o.EndpointSlices {
		slice := &o.EndpointSlices[i]
		if of := slice.Labels[discoveryv1.LabelServiceName]; of != "" {
			key := types.NamespacedName{Namespace: slice.Namespace, Name: of}
			e.slices[key] = append(e.slices[key], slice)
		}
	}
	for i := range o.ServiceRules {
		if key, ok := serviceOf(&o.ServiceRules[i]); ok {
			e.rules[key] = &o.ServiceRules[i]
		}
	}
	for i := range o.Pods {
		e.pods[o.Pods[i].Namespace] = append(e.pods[o.Pods[i].Namespace], &o.Pods[i])
	}
	for _, namespace := range o.Namespaces {
		e.labels[namespace.Name] = namespace.Labels
	}
	for _, node := range e.Nodes {
		e.localByNode[node.Name], _ = combine.LocalEndpoints(node.Spec.LocalEndpoints)
	}
	var valid []policies.ServicePolicy
	for i := range o.ServicePolicies {
		policy, errs := policies.ServicePolicyOf(&o.ServicePolicies[i])
		e.servicePolicies = append(e.servicePolicies, policy)
		if len(errs) == 0 {
			valid = append(valid, policy)
		}
	}
	if e.Unreadable(cluster.ServiceProxyPolicies, cluster.Namespaces) == "" {
		e.shapes = policies.NewServices(valid)
	}
	return e
}

func examine(objects *cluster.Objects, q *Question) (*examination, error) {
	e := index(objects, q)
	e.report.Nodes = len(e.Nodes)
	if e.Unreadable(cluster.Services) == "" {
		e.report.Services = new(len(e.asked()))
		if q.Service != nil {
			*e.report.Services = len(objects.Services)
		}
		if only := q.Service; only != nil && e.services[*only] == nil {
			return nil, fmt.Errorf("there is no Service %s: kubectl get services -n %s lists the Services", only, only.Namespace)
		}
	}
	e.clocks()
	if q.Service != nil {
		e.report.Service = q.Service.String()
		e.about()
	}
	for _, check := range []struct {
		name  findings.Check
		needs []cluster.Kind // of those that may be unreadable
		do    func()
	}{
		{findings.CheckController, nil, e.Controller},
		{findings.CheckController, nil, e.inventory},
		{findings.CheckController, nil, e.unrenderedServices},
		{findings.CheckController, []cluster.Kind{cluster.Pods}, e.OwnPods},
		{findings.CheckDNS, []cluster.Kind{cluster.Services, cluster.EndpointSlices}, e.dns},
		{findings.CheckNodes, nil, e.NodeStates},
		{findings.CheckNodes, nil, e.freshness},
		{findings.CheckNodes, nil, e.withoutRules},
		{findings.CheckRendering, []cluster.Kind{cluster.Services, cluster.EndpointSlices}, e.rendering},
		{findings.CheckEndpoints, []cluster.Kind{cluster.Services, cluster.EndpointSlices}, e.endpoints},
		{findings.CheckEndpoints, nil, e.failing},
		{findings.CheckTrafficPolicy, nil, e.trafficPolicies},
		{findings.CheckHairpin, nil, e.hairpin},
		{findings.CheckConntrack, nil, e.Conntrack},
		{findings.CheckPolicies, []cluster.Kind{cluster.NodeProxyPolicies, cluster.ServiceProxyPolicies}, e.policies},
		{findings.CheckExposure, []cluster.Kind{cluster.Services}, e.exposure},
	} {
		if why := e.Unreadable(check.needs...); why != "" {
			e.Skip(check.name, why)
			continue
		}
		check.do()
	}
	return e, nil
}

// maxClockSkew is how far two clocks may be apart without a note: requests take time, and
// the API server reports full seconds.
const maxClockSkew = 30 * time.Second

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

// soon is how long the controller and agents may take for urgent work.
const soon = 2 * time.Second

// reported is how long an agent may take to report a change: it writes non-urgent changes
// of its status every five seconds at most.
const reported = 6 * time.Second

// patience is how long to wait until a finding cannot be transient: the controller paces
// updates of Services with very many endpoints.
func (e *examination) patience() time.Duration {
	wait := soon
	if slices.ContainsFunc(e.Found, func(f findings.Finding) bool { return f.Transient && f.Check == findings.CheckNodes }) {
		wait = reported
	}
	for name := range e.slices {
		endpoints := 0
		for _, slice := range e.rendered(name) {
			endpoints += len(slice.Endpoints)
		}
		load := render.Load{Endpoints: int32(min(endpoints, math.MaxInt32))}
		if stored := e.rules[name]; stored != nil {
			load = load.Max(render.LoadOf(&stored.Spec, encoded(stored)))
		}
		if pace := render.Pace(load); pace > 0 {
			wait = max(wait, pace+time.Second)
		}
	}
	for _, node := range e.Nodes {
		if pace := render.NodePace(encoded(&node.Spec)); pace > 0 {
			wait = max(wait, pace+time.Second)
		}
	}
	return wait
}

// encoded is the size of an object as JSON.
func encoded(object any) int {
	text, err := json.Marshal(object)
	if err != nil {
		return 0
	}
	return len(text)
}

// dropUnconfirmed drops findings that may be transient, because the second examination
// failed, and skips their checks.
func (e *examination) dropUnconfirmed(why error) {
	uncertain := map[findings.Check][]string{}
	var certain []findings.Finding
	for _, f := range e.Found {
		if !f.Transient {
			certain = append(certain, f)
			continue
		}
		uncertain[f.Check] = append(uncertain[f.Check], f.Reason+f.Where())
	}
	e.Found = certain
	for check, names := range uncertain {
		slices.Sort(names)
		e.Skip(check, fmt.Sprintf("%s may be transient (%s), because the second examination failed: %v", text.Count(len(names), "finding"), findings.Some(names), why))
	}
}
