package status

import (
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
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// patience is how long a change may be pending, or an object missing, before conditions
	// report it.
	patience = 10 * time.Second
	// auditPatience is the same for a comparison: two of several seconds, and their pauses.
	auditPatience = 30 * time.Second
	// maxMessage bounds messages of conditions.
	maxMessage = 1024
)

// Facts are what the agent knows apart from the desired state.
type Facts struct {
	Version  string
	Started  time.Time
	Kernel   string
	Iptables string
	// Modes are those that the node could run.
	Modes    []v1alpha1.ModeSupport
	Formats  desired.Formats
	Families []dataplane.Family
	Audit    bool // enforcement is Audit
	Removing bool // rules are being removed, or were
	// The last result of probing for other proxies.
	OtherProxy string
	OtherGone  time.Time
	OtherWait  time.Duration
	Unanswered bool
	// Remaining is what that proxy does not take over, human-readable.
	Remaining string
	Tracking  conntrack.TunerFacts
	Drift     drift.Facts
	// Userspace are failures of endpoints that the agent itself connects to; nil: none.
	Userspace *v1alpha1.UserspaceReport
	// Warnings are failures that do not concern rules.
	Warnings  []string
	Leftovers []string
}

// Build returns the status. Conditions with the same status as in former keep their
// lastTransitionTime.
func Build(s desired.Snapshot, f Facts, former []metav1.Condition) v1alpha1.NodeProxyRulesStatus {
	status := v1alpha1.NodeProxyRulesStatus{
		SettingsRevision:       s.Applied.SettingsRevision,
		Mode:                   s.ShownMode(),
		AppliedResourceVersion: s.Applied.Version,
		Services:               int32(s.Services),
		Endpoints:              int32(s.Endpoints),
		LocalEndpoints:         int32(s.Local),
		Retained:               int32(len(s.Retained)),
		Rejected:               &v1alpha1.RejectedServices{Count: int32(len(s.Rejected)), Examples: rejectedExamples(&s)},
		LastSync:               s.Applied.LastSync,
		Conntrack:              f.Tracking.Report,
		Userspace:              f.Userspace,
		Drift:                  &v1alpha1.DriftReport{Repairs: f.Drift.Repairs, Examples: wording.Examples(f.Drift.Examples)},
		Agent: &v1alpha1.AgentReport{
			Version: f.Version, StartTime: Seconds(f.Started), Kernel: f.Kernel, IPTables: f.Iptables,
			FormatVersions: f.Formats, Modes: f.Modes,
		},
	}
	for _, family := range f.Families {
		if s.Families[family].Done {
			status.Families = append(status.Families, string(family))
		}
	}
	if s.Kernel != nil {
		counts := s.Kernel.Counts
		status.Kernel = &v1alpha1.KernelCounts{
			VerifiedTime: Seconds(s.Kernel.At), Chains: int32(counts[dataplane.Chains]), Rules: int32(counts[dataplane.Rules]),
			IPSetEntries: int32(counts[dataplane.SetEntries]), VirtualServers: int32(counts[dataplane.VirtualServers]), RealServers: int32(counts[dataplane.RealServers]),
		}
		sets := counts.Sets()
		for _, name := range slices.Sorted(maps.Keys(sets)) {
			status.Kernel.Sets = append(status.Kernel.Sets, v1alpha1.SetCount{Name: name, Elements: int32(sets[name])})
		}
	}
	if s.Difference != nil {
		status.Difference = &v1alpha1.DifferenceReport{
			Count: int32(s.Difference.Count), Examples: wording.Examples(s.Difference.Examples),
		}
	}
	if !f.Drift.LastTime.IsZero() {
		status.Drift.LastTime = Seconds(f.Drift.LastTime)
	}
	programmed := ProgrammedCondition(s, f)
	// The applied generation, or the one that a condition reports as not applied.
	status.ObservedGeneration = s.Own.Generation
	if programmed.Status == metav1.ConditionTrue && s.Applied.Generation != 0 {
		status.ObservedGeneration = s.Applied.Generation
	}
	add := func(c *metav1.Condition) {
		if c == nil {
			return
		}
		out := metav1.Condition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, Message: text.Truncate(ended(c.Message), maxMessage),
			ObservedGeneration: status.ObservedGeneration, LastTransitionTime: Seconds(s.Now),
		}
		if old := meta.FindStatusCondition(former, c.Type); old != nil && old.Status == c.Status {
			out.LastTransitionTime = old.LastTransitionTime
		}
		status.Conditions = append(status.Conditions, out)
	}
	accepted := AcceptedCondition(s)
	add(&accepted)
	add(&programmed)
	add(fallbackCondition(s, former))
	add(conflictCondition(f, former))
	add(pressureCondition(f.Tracking.Report, former))
	add(f.Drift.Condition(former))
	return status
}

// ended is a message with a full stop.
func ended(message string) string {
	if message == "" || strings.ContainsAny(message[len(message)-1:], ".?") {
		return message
	}
	return message + "."
}

// Seconds is t as the API stores it.
func Seconds(t time.Time) metav1.Time {
	return metav1.NewTime(t.UTC().Truncate(time.Second))
}
