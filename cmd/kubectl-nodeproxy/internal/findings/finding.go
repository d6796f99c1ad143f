package findings

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Severity is how bad a finding is.
type Severity string

// Severities.
const (
	// Problem: something does not work.
	Problem Severity = "Problem"
	// Warning: something may not work, or may soon stop working.
	Warning Severity = "Warning"
)

// Check is a group of findings about one subject.
type Check string

// Checks, in the order in which they run.
const (
	CheckController    Check = "controller"
	CheckDNS           Check = "dns"
	CheckNodes         Check = "nodes"
	CheckRendering     Check = "rendering"
	CheckEndpoints     Check = "endpoints"
	CheckTrafficPolicy Check = "traffic-policy"
	CheckHairpin       Check = "hairpin"
	CheckConntrack     Check = "conntrack"
	CheckPolicies      Check = "policies"
	CheckExposure      Check = "exposure"
)

// checks are all checks in the order in which they run.
var checks = []Check{
	CheckController, CheckDNS, CheckNodes, CheckRendering, CheckEndpoints,
	CheckTrafficPolicy, CheckHairpin, CheckConntrack, CheckPolicies, CheckExposure,
}

// Finding is something that is wrong.
type Finding struct {
	Severity Severity `json:"severity"`
	// Reason identifies the kind of finding in one word. Scripts can rely on it.
	Reason string `json:"reason"`
	Check  Check  `json:"check"`
	// Service (namespace/name), Nodes and Policy (kind/name) are what is affected. If none
	// is set, it is the cluster.
	Service string   `json:"service,omitempty"`
	Nodes   []string `json:"nodes,omitempty"`
	Policy  string   `json:"policy,omitempty"`
	// Message is what is wrong.
	Message string `json:"message"`
	// Since is when it began, if that is known.
	Since metav1.Time `json:"since,omitzero"`
	// Remedy is what to do, with a command or a page of the documentation.
	Remedy string `json:"remedy"`
	// Consequences are findings that follow from this one.
	Consequences []Finding `json:"consequences,omitempty"`

	// Key identifies the finding as a cause of others. Causes are the keys of findings that
	// explain this one, the best first.
	Key    string   `json:"-"`
	Causes []string `json:"-"`
	// Transient: it may be an intermediate state. A second examination confirms it, if it
	// finds the same with the same Token.
	Transient bool   `json:"-"`
	Token     string `json:"-"`
	// RemedyOn returns the Remedy for one node or, without a name, for several.
	RemedyOn func(node string) string `json:"-"`
}

// Identity is equal for the same finding of two examinations.
func (f *Finding) Identity() string {
	return strings.Join([]string{string(f.Check), f.Reason, f.Service, strings.Join(f.Nodes, ","), f.Policy, f.Key, f.Token}, "\n")
}

// SkippedCheck is a check that could not run, or not completely.
type SkippedCheck struct {
	Check   Check  `json:"check"`
	Message string `json:"message"`
}
