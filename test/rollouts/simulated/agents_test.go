package simulated

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// theAgent owns what agents write.
const theAgent = client.FieldOwner("nodeproxy-agent")

// outcome is what becomes of what a node is given.
type outcome int

const (
	works      outcome = iota
	fails              // the kernel does not take it: not applied, Programmed False
	rejects            // the agent does not accept it: not applied
	rejectsOne         // applied but for one Service
	breaks             // applied, and then Programmed False
	differs            // Audit, and the kernel differs
	conflicts          // another proxy is active
	silent             // the agent is not there, or hangs
)

// reaction is what an agent does with what its node was given, and after how long.
type reaction struct {
	outcome outcome
	after   time.Duration
	service string // that is rejected
}

// behavior is how an agent reacts.
type behavior func(spec *v1alpha1.NodeProxyRulesSpec) reaction

func always(what outcome) behavior {
	return func(*v1alpha1.NodeProxyRulesSpec) reaction { return reaction{outcome: what} }
}

func slow(after time.Duration) behavior {
	return func(*v1alpha1.NodeProxyRulesSpec) reaction { return reaction{outcome: works, after: after} }
}

// rejecting has an agent reject a Service.
func rejecting(service string) behavior {
	return func(*v1alpha1.NodeProxyRulesSpec) reaction { return reaction{outcome: rejectsOne, service: service} }
}

// with has an agent react so to settings of a mode, and do well with others.
func with(mode v1alpha1.ProxyMode, what outcome) behavior {
	return func(spec *v1alpha1.NodeProxyRulesSpec) reaction {
		if spec.Settings.Mode != nil && *spec.Settings.Mode == mode {
			return reaction{outcome: what}
		}
		return reaction{outcome: works}
	}
}

// fleet is the agents of all nodes.
type fleet struct {
	t    *testing.T
	ctx  context.Context
	api  client.Client
	done *sync.WaitGroup

	mu     sync.Mutex
	agents map[string]*agent
}

// agent reports on one node.
type agent struct {
	fleet   *fleet
	name    string
	started time.Time
	stop    context.CancelFunc
	changed chan struct{} // holds one when there is something to look at

	mu       sync.Mutex
	behavior behavior
	rules    *v1alpha1.NodeProxyRules // as seen last
}

// start starts the agent of a node, in the place of one that runs.
func (f *fleet) start(name string, b behavior) {
	f.vanish(name)
	ctx, stop := context.WithCancel(f.ctx)
	a := &agent{fleet: f, name: name, started: time.Now(), stop: stop, changed: make(chan struct{}, 1), behavior: b}
	f.mu.Lock()
	f.agents[name] = a
	f.mu.Unlock()
	f.done.Go(func() { a.run(ctx) })
}

// vanish ends the agent of a node without a word.
func (f *fleet) vanish(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.agents[name]; a != nil {
		a.stop()
		delete(f.agents, name)
	}
}

// behave has agents react in another way, also to what they have already.
func (f *fleet) behave(b behavior, names ...string) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		a := f.agents[name]
		if a == nil {
			f.t.Errorf("no agent runs on %s", name)
			continue
		}
		a.mu.Lock()
		a.behavior = b
		a.mu.Unlock()
		a.look()
	}
}

// see gives a node's agent its rules.
func (f *fleet) see(rules *v1alpha1.NodeProxyRules) {
	f.mu.Lock()
	a := f.agents[rules.Name]
	f.mu.Unlock()
	if a == nil {
		return
	}
	a.mu.Lock()
	a.rules = rules
	a.mu.Unlock()
	a.look()
}

func (a *agent) look() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *agent) run(ctx context.Context) {
	if err := a.renew(ctx); err != nil && ctx.Err() == nil {
		a.fleet.t.Errorf("the Lease of the agent of %s: %v", a.name, err)
	}
	if stored := (&v1alpha1.NodeProxyRules{}); a.fleet.api.Get(ctx, client.ObjectKey{Name: a.name}, stored) == nil {
		a.fleet.see(stored)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		}
		if err := a.react(ctx); err != nil && ctx.Err() == nil {
			a.fleet.t.Errorf("the agent of %s: %v", a.name, err)
		}
	}
}

// react reports on what the node was given, unless that is reported already.
func (a *agent) react(ctx context.Context) error {
	rules, r := a.state()
	if rules == nil {
		return nil
	}
	if r.after > 0 && rules.Status.SettingsRevision != rules.Spec.SettingsRevision {
		timer := time.NewTimer(r.after)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		rules, r = a.state() // what has come meanwhile is done with it
	}
	if r.outcome == silent {
		return nil
	}
	status := a.report(rules, r)
	if equality.Semantic.DeepEqual(status, rules.Status) {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeProxyRules",
		"metadata": map[string]any{"name": a.name}, "status": status,
	})
	if err != nil {
		return err
	}
	into := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: a.name}}
	err = a.fleet.api.Status().Patch(ctx, into, client.RawPatch(types.ApplyPatchType, body), theAgent, client.ForceOwnership)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (a *agent) state() (*v1alpha1.NodeProxyRules, reaction) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rules == nil {
		return nil, reaction{}
	}
	return a.rules, a.behavior(&a.rules.Spec)
}

// report is the status that an agent would write: see agent/status.
func (a *agent) report(rules *v1alpha1.NodeProxyRules, r reaction) v1alpha1.NodeProxyRulesStatus {
	former, what := rules.Status, r.outcome
	status := v1alpha1.NodeProxyRulesStatus{
		SettingsRevision: rules.Spec.SettingsRevision, ObservedGeneration: rules.Generation,
		Families: []string{"IPv4", "IPv6"}, Rejected: &v1alpha1.RejectedServices{},
		Agent: &v1alpha1.AgentReport{
			Version: "v0.1.0", StartTime: metav1.NewTime(a.started.UTC().Truncate(time.Second)),
			Kernel: "6.18.0", IPTables: "1.8.9 (nf_tables)", FormatVersions: []int32{1},
		},
	}
	if mode := rules.Spec.Settings.Mode; mode != nil {
		status.Mode = *mode
	}
	accepted := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted, Message: "The agent and the node support this object."}
	programmed := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed, Message: "The desired state is programmed."}
	bad := func(reason, message string) {
		programmed.Status, programmed.Reason, programmed.Message = metav1.ConditionFalse, reason, message
	}
	notApplied := func() { status.SettingsRevision, status.Mode = former.SettingsRevision, former.Mode }
	audit := rules.Spec.Settings.Enforcement != nil && *rules.Spec.Settings.Enforcement == v1alpha1.Audit
	if audit {
		programmed.Reason, programmed.Message = v1alpha1.ReasonAuditInSync, "The kernel has the desired state; enforcement is Audit: this agent writes nothing; another proxy runs on this node (x)."
	}
	switch {
	case what == fails:
		notApplied()
		bad(v1alpha1.ReasonFailed, "Not everything could be written: IPv4: iptables-restore: exit status 4. The rest is up to date or unchanged, and the agent retries.")
	case what == rejects:
		notApplied()
		accepted.Status, accepted.Reason = metav1.ConditionFalse, v1alpha1.ReasonUnsupported
		accepted.Message = v1alpha1.MessageNotAccepted + "spec.settings.mode: the kernel has no IPVS. The agent retries until it works."
		bad(v1alpha1.ReasonFailed, accepted.Message)
	case what == conflicts:
		notApplied()
		bad(v1alpha1.ReasonConflictingProxy, "kube-proxy answers on port 10249")
	case what == breaks:
		bad(v1alpha1.ReasonFailed, "Not everything could be written: IPv4: iptables-restore: exit status 4. The rest is up to date or unchanged, and the agent retries.")
	case what == rejectsOne:
		programmed.Reason = v1alpha1.ReasonSomeServicesRejected
		example := cmp.Or(r.service, "shop/cart") + ": no such address"
		programmed.Message = "The kernel rejects the rules of 1 Service and has those of all others; fix the cause in the Service or on the node: " + example
		status.Rejected = &v1alpha1.RejectedServices{Count: 1, Examples: []string{example}}
	case audit && what == differs:
		bad(v1alpha1.ReasonAuditDiffers, "The kernel differs from the desired state, see status.difference.")
	}
	conditions := []metav1.Condition{accepted, programmed}
	if old := meta.FindStatusCondition(former.Conditions, v1alpha1.ConditionConflictingProxy); what == conflicts || old != nil {
		c := metav1.Condition{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoConflict, Message: "no other proxy is active"}
		if what == conflicts {
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonConflictingProxy, "kube-proxy answers on port 10249"
		}
		conditions = append(conditions, c)
	}
	for _, c := range conditions {
		c.ObservedGeneration = rules.Generation
		c.LastTransitionTime = metav1.NewTime(time.Now().UTC().Truncate(time.Second))
		if old := meta.FindStatusCondition(former.Conditions, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		status.Conditions = append(status.Conditions, c)
	}
	return status
}

// renew writes the agent's Lease.
func (a *agent) renew(ctx context.Context) error {
	name := v1alpha1.AgentLeaseName(a.name)
	body, err := json.Marshal(map[string]any{
		"apiVersion": coordinationv1.SchemeGroupVersion.String(), "kind": "Lease",
		"metadata": map[string]any{"name": name, "namespace": namespace},
		"spec": map[string]any{
			"holderIdentity": a.name, "leaseDurationSeconds": v1alpha1.AgentLeaseSeconds,
			"acquireTime": metav1.NewMicroTime(a.started.UTC()), "renewTime": metav1.NewMicroTime(time.Now().UTC()),
		},
	})
	if err != nil {
		return err
	}
	into := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	if err := a.fleet.api.Patch(ctx, into, client.RawPatch(types.ApplyPatchType, body), theAgent, client.ForceOwnership); err != nil {
		return fmt.Errorf("applying the Lease: %w", err)
	}
	return nil
}
