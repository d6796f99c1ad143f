package doctor

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Severity says how bad a finding is.
type Severity string

// Severities.
const (
	// Problem: something does not work.
	Problem Severity = "problem"
	// Warning: something may not work, or soon will not.
	Warning Severity = "warning"
)

// Check is what one of the checks looks at.
type Check string

// Checks, in the order in which they are made.
const (
	CheckController    Check = "controller"
	CheckDNS           Check = "dns"
	CheckNodes         Check = "nodes"
	CheckRendering     Check = "rendering"
	CheckEndpoints     Check = "endpoints"
	CheckTrafficPolicy Check = "traffic policy"
	CheckHairpin       Check = "hairpin"
	CheckConntrack     Check = "conntrack"
	CheckPolicies      Check = "policies"
	CheckExposure      Check = "exposure"
)

// Finding is something that is wrong.
type Finding struct {
	Severity Severity `json:"severity"`
	// Name is one word for it, the same whatever the cluster.
	Name  string `json:"name"`
	Check Check  `json:"check"`
	// Service, as namespace/name, Nodes and Policy, as kind/name, are where it is.
	// Without any it is the whole cluster.
	Service string   `json:"service,omitempty"`
	Nodes   []string `json:"nodes,omitempty"`
	Policy  string   `json:"policy,omitempty"`
	// What is wrong.
	What string `json:"what"`
	// Since is when it began, where somebody has noted that.
	Since *metav1.Time `json:"since,omitempty"`
	// Do is what to do, with a command or a page of the documentation.
	Do string `json:"do"`
	// Therefore are findings that follow from this one.
	Therefore []Finding `json:"therefore,omitempty"`

	// key is what others name it by as their cause; causes are the keys of findings
	// that explain this one, the best first.
	key    string
	causes []string
	// passing: it may be gone in a moment, as it is a state on the way. It counts if it
	// is there a second time, with the same token.
	passing bool
	token   string
	// doOn is Do for one node; where it is about several, for none.
	doOn func(node string) string
}

// identity is what a finding has in common with the same one of another look.
func (f *Finding) identity() string {
	return strings.Join([]string{string(f.Check), f.Name, f.Service, strings.Join(f.Nodes, ","), f.Policy, f.key, f.token}, "\n")
}

// NotMade is a check that could not be made, or not all of it.
type NotMade struct {
	Check Check  `json:"check"`
	Why   string `json:"why"`
}

// Exposure is a way by which clients outside of the cluster reach a Service.
type Exposure struct {
	Service string `json:"service"`
	// Kind is NodePort, ExternalIP, LoadBalancerIP or HealthCheckNodePort.
	Kind string `json:"kind"`
	// Addresses are those that answer, and Ports as port/protocol.
	Addresses string   `json:"addresses"`
	Ports     []string `json:"ports"`
	// Clients are the ranges of those that are let in.
	Clients string `json:"clients"`
	// By are the policies that shape it; without any it is as the Service says.
	By []string `json:"by,omitempty"`
}

// Report is what the doctor has found out.
type Report struct {
	// Service, as namespace/name, is the one that was looked at; empty: all of them.
	Service string `json:"service,omitempty"`
	// Time is when the objects were read.
	Time metav1.Time `json:"time"`
	// Services and Nodes are how many of them there are. Services is nil where they could
	// not be read.
	Services *int `json:"services,omitempty"`
	Nodes    int  `json:"nodes"`
	// Findings are sorted: what explains most comes first.
	Findings []Finding `json:"findings"`
	// NotMade are checks that could not be made.
	NotMade []NotMade `json:"notMade,omitempty"`
	// Exposed is what clients outside of the cluster can reach.
	Exposed []Exposure `json:"exposed"`
	// Remarks are what else is good to know. Nothing is wrong there.
	Remarks []string `json:"remarks,omitempty"`
}

// order folds findings under those that explain them, makes one of those that are
// alike on several nodes, and sorts them.
func order(found []Finding) []Finding {
	byKey := map[string]int{}
	for i := range found {
		if found[i].key != "" {
			byKey[found[i].key] = i
		}
	}
	parent := slices.Repeat([]int{-1}, len(found))
	for i := range found {
		for _, cause := range found[i].causes {
			if p, ok := byKey[cause]; ok && p != i && !within(parent, p, i) {
				parent[i] = p
				break
			}
		}
	}
	var under func(of int) []Finding
	under = func(of int) []Finding {
		var out []Finding
		for i := range found {
			if parent[i] == of {
				f := found[i]
				f.Therefore = under(i)
				out = append(out, f)
			}
		}
		return sorted(alike(out))
	}
	return under(-1)
}

// within reports whether i explains p already, so that p cannot explain i.
func within(parent []int, p, i int) bool {
	for ; p >= 0; p = parent[p] {
		if p == i {
			return true
		}
	}
	return false
}

// alike makes one finding of those that differ in nothing but the node.
func alike(found []Finding) []Finding {
	type likeness struct {
		severity                        Severity
		name, service, policy, what, do string
	}
	seen := map[likeness]int{}
	var out []Finding
	for _, f := range found {
		key := likeness{f.Severity, f.Name, f.Service, f.Policy, f.What, f.Do}
		i, ok := seen[key]
		if !ok {
			seen[key] = len(out)
			f.Nodes = slices.Clone(f.Nodes)
			out = append(out, f)
			continue
		}
		one := &out[i]
		one.Nodes = append(one.Nodes, f.Nodes...)
		one.Therefore = sorted(alike(append(one.Therefore, f.Therefore...)))
		if f.Since != nil && (one.Since == nil || f.Since.Before(one.Since)) {
			one.Since = f.Since
		}
	}
	for i := range out {
		slices.Sort(out[i].Nodes)
		out[i].Nodes = slices.Compact(out[i].Nodes)
		if do := out[i].doOn; do != nil {
			node := ""
			if len(out[i].Nodes) == 1 {
				node = out[i].Nodes[0]
			}
			out[i].Do = do(node)
		}
	}
	return out
}

// sorted puts problems before warnings, and then what explains most first.
func sorted(found []Finding) []Finding {
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(severe(a), severe(b)),
			cmp.Compare(count(b.Therefore), count(a.Therefore)),
			cmp.Compare(slices.Index(checks(), a.Check), slices.Index(checks(), b.Check)),
			cmp.Compare(a.Service, b.Service),
			cmp.Compare(strings.Join(a.Nodes, ","), strings.Join(b.Nodes, ",")),
			cmp.Compare(a.Policy, b.Policy),
			cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.What, b.What),
		)
	})
	return found
}

func checks() []Check {
	return []Check{
		CheckController, CheckDNS, CheckNodes, CheckRendering, CheckEndpoints,
		CheckTrafficPolicy, CheckHairpin, CheckConntrack, CheckPolicies, CheckExposure,
	}
}

func severe(f Finding) int {
	if f.Severity == Problem {
		return 0
	}
	return 1
}

// count counts findings with those that follow from them.
func count(found []Finding) int {
	n := len(found)
	for i := range found {
		n += count(found[i].Therefore)
	}
	return n
}
