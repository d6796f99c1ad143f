package status

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/drift"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// patience is how long a change may wait and an object may be missing
	// before the conditions say so.
	patience = 10 * time.Second
	// auditPatience is how long a change may wait to be compared before the
	// conditions say so: two comparisons of several seconds, and their rests.
	auditPatience = 30 * time.Second
	// maxMessage bounds messages of conditions.
	maxMessage = 1024
)

// failedMeanwhile ends what is said of a failed write. One that fails late has
// written most.
const failedMeanwhile = "what could be written is written, all else stays as it was; the agent tries again"

// Facts are what the agent knows of itself.
type Facts struct {
	Version  string
	Started  time.Time
	Kernel   string
	Iptables string
	Formats  desired.Formats
	Families []dataplane.Family
	Audit    bool // enforcement is Audit
	Removing bool // rules are to be removed, or have been
	// What is known of other proxies: see turn.
	OtherProxy string
	OtherGone  time.Time
	OtherWait  time.Duration
	Unanswered bool
	Tracking   conntrack.TunerFacts
	Drift      drift.Facts
	// Warnings are what besides rules could not be done.
	Warnings  []string
	Leftovers []string
}

// Build is the status that the snapshot amounts to. Conditions whose
// status is the same as in former keep its lastTransitionTime.
func Build(s desired.Snapshot, f Facts, former []metav1.Condition) v1alpha1.NodeProxyRulesStatus {
	status := v1alpha1.NodeProxyRulesStatus{
		SettingsRevision:       s.Applied.SettingsRevision,
		Mode:                   s.Applied.Mode,
		AppliedResourceVersion: s.Applied.Version,
		Services:               int32(s.Services),
		Endpoints:              int32(s.Endpoints),
		LocalEndpoints:         int32(s.Local),
		Retained:               int32(len(s.Retained)),
		Rejected:               rejectedServices(&s),
		LastSync:               s.Applied.LastSync,
		Agent: &v1alpha1.AgentReport{
			Version: f.Version, StartTime: Seconds(f.Started), Kernel: f.Kernel, IPTables: f.Iptables,
			FormatVersions: f.Formats,
		},
	}
	for _, family := range f.Families {
		if s.Families[family].Done {
			status.Families = append(status.Families, string(family))
		}
	}
	if s.Kernel != nil {
		status.Kernel = &v1alpha1.KernelCounts{
			VerifiedTime: Seconds(s.Kernel.At), Chains: int32(s.Kernel.Counts[dataplane.Chains]), Rules: int32(s.Kernel.Counts[dataplane.Rules]),
			IPSetEntries: int32(s.Kernel.Counts[dataplane.SetEntries]), VirtualServers: int32(s.Kernel.Counts[dataplane.VirtualServers]), RealServers: int32(s.Kernel.Counts[dataplane.RealServers]),
		}
	}
	if s.Difference != nil {
		status.Difference = &v1alpha1.DifferenceReport{
			Count: int32(s.Difference.Count), Examples: wording.Examples(s.Difference.Examples),
		}
	}
	status.Conntrack = f.Tracking.Report
	status.Drift = driftReport(&f.Drift)
	programmed := ProgrammedCondition(s, f)
	status.ObservedGeneration = observedGeneration(s, programmed)
	status.Conditions = conditions(s, f, programmed, status.ObservedGeneration, former)
	return status
}

// observedGeneration is the generation that the status is about: the one in
// force, or the one that is not while a condition says so.
func observedGeneration(s desired.Snapshot, programmed metav1.Condition) int64 {
	if programmed.Status == metav1.ConditionTrue && s.Applied.Generation != 0 {
		return s.Applied.Generation
	}
	return s.Own.Generation
}

func conditions(s desired.Snapshot, f Facts, programmed metav1.Condition, generation int64, former []metav1.Condition) []metav1.Condition {
	wanted := []metav1.Condition{AcceptedCondition(s), programmed}
	for _, c := range []*metav1.Condition{
		FallbackCondition(s, former), ConflictCondition(f, former),
		pressureCondition(f.Tracking.Report, former), f.Drift.Condition(former),
	} {
		if c != nil {
			wanted = append(wanted, *c)
		}
	}
	out := make([]metav1.Condition, 0, len(wanted))
	for _, c := range wanted {
		c.Message = wording.Clip(c.Message, maxMessage)
		c.ObservedGeneration = generation
		c.LastTransitionTime = Seconds(s.Now)
		if old := meta.FindStatusCondition(former, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		out = append(out, c)
	}
	return out
}

// AcceptedCondition returns the condition Accepted.
func AcceptedCondition(s desired.Snapshot) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse}
	switch {
	case s.Refusal != nil:
		c.Reason, c.Message = s.Refusal.Reason, s.Refusal.Message
	case errors.Is(s.Err, dataplane.ErrUnsupported):
		c.Reason, c.Message = v1alpha1.ReasonUnsupported, wording.OneLine(s.Err)+"; the agent tries again until it works"
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the agent understands this object and the node can do what it asks"
	}
	return c
}

// ProgrammedCondition says whether the kernel holds what is wanted, and what
// besides could not be done.
func ProgrammedCondition(s desired.Snapshot, f Facts) metav1.Condition {
	c := programmedRow(s, f)
	if all := slices.Concat(s.Warnings, f.Warnings, f.Leftovers, f.Tracking.Warnings); c.Status == metav1.ConditionTrue && len(all) > 0 {
		c.Message += v1alpha1.MessageBut + strings.Join(all, "; ")
	}
	if c.Status == metav1.ConditionTrue && len(s.Retiring) > 0 {
		c.Message += "; " + strings.Join(s.Retiring, "; ")
	}
	if c.Status == metav1.ConditionTrue && f.Drift.Message != "" {
		c.Message += "; but somebody else undoes it again and again: see the condition " + v1alpha1.ConditionDrifted
	}
	return c
}

// programmedRow is the first row of the design's table that applies. Removed comes
// before ConflictingProxy: where another proxy is active there is nothing to
// remove, and nobody has to wait for this node.
func programmedRow(s desired.Snapshot, f Facts) metav1.Condition {
	row := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: message}
	}
	switch {
	case s.Removal.Wanted:
		return removalRow(s.Removal, f)
	case f.Conflict() != "":
		return row(metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, conflictMessage(f))
	case s.Refusal != nil:
		return row(metav1.ConditionFalse, v1alpha1.ReasonFailed, "not accepted: "+s.Refusal.Message)
	case s.Err != nil && f.Audit:
		return row(metav1.ConditionFalse, v1alpha1.ReasonFailed, "the kernel cannot be compared to what is wanted: "+wording.OneLine(s.Err)+"; the agent tries again")
	case s.Err != nil:
		return row(metav1.ConditionFalse, v1alpha1.ReasonFailed, wording.OneLine(s.Err)+"; "+failedMeanwhile)
	case !s.Done:
		return row(metav1.ConditionFalse, v1alpha1.ReasonPending, firstSetMessage(s, f))
	case f.Audit && waitsFor(&s, auditPatience):
		return row(metav1.ConditionFalse, v1alpha1.ReasonPending,
			"changes wait since "+s.OldestPending.UTC().Format(time.RFC3339)+" to be compared to the kernel; see the agent's log on this node")
	case f.Audit:
		return auditCondition(s, f)
	case waitsFor(&s, patience):
		return row(metav1.ConditionFalse, v1alpha1.ReasonPending,
			"changes wait since "+s.OldestPending.UTC().Format(time.RFC3339)+" to be written to the kernel; see the agent's log on this node")
	case len(s.Rejected) > 0:
		return row(metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRejected,
			fmt.Sprintf("all Services are programmed but %d, whose rules the kernel refuses: %s", len(s.Rejected), refusedText(&s)))
	case heldTooLong(&s) || unconfirmedTooLong(&s):
		return row(metav1.ConditionTrue, v1alpha1.ReasonRetained, heldMessage(s))
	default:
		return row(metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "the kernel holds what is wanted")
	}
}

// waitsFor reports whether a change has been waiting for longer than that.
func waitsFor(s *desired.Snapshot, limit time.Duration) bool {
	return !s.OldestPending.IsZero() && s.Now.Sub(s.OldestPending) > limit
}

func heldTooLong(s *desired.Snapshot) bool {
	return !s.RetainedSince.IsZero() && s.Now.Sub(s.RetainedSince) >= patience
}

func unconfirmedTooLong(s *desired.Snapshot) bool {
	return !s.UnconfirmedSince.IsZero() && s.Now.Sub(s.UnconfirmedSince) >= patience
}

func firstSetMessage(s desired.Snapshot, f Facts) string {
	if f.Audit && s.Listed {
		return "enforcement is Audit: the kernel has not been compared to what is wanted yet"
	}
	if f.Unanswered && !f.Audit {
		return fmt.Sprintf("%s, where kube-proxy would answer, accepts connections but has not answered yet: nothing is written until it answers, its port is closed, or %d requests in a row got no answer; if kube-proxy runs on this node, stop it", ownership.ProxyModeAddress, ownership.ProbeLimit)
	}
	if !s.Listed {
		return "no complete set of rules since the agent started: it waits for the list of ServiceProxyRules; if this lasts, the agent's log says why"
	}
	return "no complete set of rules has been written to the kernel since the agent started, or since it may write again"
}

func heldMessage(s desired.Snapshot) string {
	var parts []string
	if text := RestoredMessage(&s); text != "" {
		parts = append(parts, text)
	}
	if n := len(s.Retained); n > 0 && heldTooLong(&s) {
		shown := s.Retained[:min(n, 3)]
		names := make([]string, 0, len(shown))
		for _, name := range shown {
			names = append(names, name.String())
		}
		if n > len(shown) {
			names = append(names, "...")
		}
		parts = append(parts, fmt.Sprintf("the ServiceProxyRules of %d Services have vanished while their Services have not ended (%s): their rules stay until the objects return or the controller confirms that the Services are gone", n, strings.Join(names, ", ")))
	}
	if unconfirmedTooLong(&s) && !s.Restored.Services {
		if s.InventoryKnown {
			parts = append(parts, "the ServiceProxyRules are not those that status.inventory of the NodeProxy counts: no rules are removed until they are; is the controller running?")
		} else {
			parts = append(parts, `there is no NodeProxy "cluster" with a status.inventory: no rules are removed until there is; create the NodeProxy, and see that the controller runs`)
		}
	}
	return strings.Join(parts, "; ")
}

func rejectedServices(s *desired.Snapshot) *v1alpha1.RejectedServices {
	return &v1alpha1.RejectedServices{Count: int32(len(s.Rejected)), Examples: refusedExamples(s)}
}

// refusedText names some of the rejected Services, human-readable.
func refusedText(s *desired.Snapshot) string {
	if list := refusedExamples(s); len(list) > 0 {
		return strings.Join(list, "; ")
	}
	return "they were rejected together and are tried one by one"
}

// refusedExamples name some of the rejected Services, first those that policies shape: by
// these the controller learns that a change of a policy does not do. Suspected ones are not
// named, as they would halt policies and be reported to their owners without a reason. Each namespace has
// one before any has two, so that none can hide those of others.
func refusedExamples(s *desired.Snapshot) []string {
	type rank struct{ unshaped, number int }
	ranks := make(map[dataplane.ServiceName]rank, len(s.Rejected))
	before := map[string][2]int{} // of a namespace: shaped, and not
	names := slices.SortedFunc(maps.Keys(s.Rejected), dataplane.ServiceName.Compare)
	names = slices.DeleteFunc(names, func(n dataplane.ServiceName) bool { return s.Suspected[n] })
	for _, name := range names {
		r := rank{unshaped: 1}
		if s.Shaped[name] {
			r.unshaped = 0
		}
		counts := before[name.Namespace]
		r.number = counts[r.unshaped]
		counts[r.unshaped]++
		before[name.Namespace] = counts
		ranks[name] = r
	}
	slices.SortStableFunc(names, func(a, b dataplane.ServiceName) int {
		return cmp.Or(cmp.Compare(ranks[a].unshaped, ranks[b].unshaped), cmp.Compare(ranks[a].number, ranks[b].number))
	})
	var out []string
	for _, name := range names {
		out = append(out, name.String()+": "+s.Rejected[name])
		if len(out) == dataplane.MaxExamples {
			break
		}
	}
	return wording.Examples(out)
}

// Seconds is t as the API stores it.
func Seconds(t time.Time) metav1.Time {
	return metav1.NewTime(t.UTC().Truncate(time.Second))
}

func driftReport(f *drift.Facts) *v1alpha1.DriftReport {
	report := &v1alpha1.DriftReport{Repairs: f.Repairs, Examples: wording.Examples(f.Examples)}
	if !f.LastTime.IsZero() {
		report.LastTime = Seconds(f.LastTime)
	}
	return report
}
