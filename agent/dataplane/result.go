package dataplane

import "github.com/nodeproxy-io/nodeproxy/api/v1alpha1"

// Result is what an Apply did.
type Result struct {
	// Kind says whether the kernel was read and compared in full.
	Kind v1alpha1.SyncKind
	// ServicesChanged is the number of Services whose rules were written.
	ServicesChanged int
	// Rejected are Services that the kernel rejects, with the reason. All
	// of them, not only those of this call. Their former rules stay, but for those of
	// Reduced.
	Rejected map[ServiceName]string
	// Reduced are those of Rejected that are programmed all the same, without addresses and
	// ports that another Service or another program has: as they are programmed.
	Reduced map[ServiceName]*Service
	// Suspected are those of Rejected that may not be at fault: there was no time
	// to try each by itself.
	Suspected map[ServiceName]struct{}
	// Warnings say what could not be done besides the rules of Services,
	// human-readable: each names the matter and what to do. At most MaxExamples.
	Warnings []string
	// Notes say what is served otherwise than Services ask, human-readable. Unlike
	// Warnings, trying again changes nothing. At most MaxExamples.
	Notes []string
	// Repaired is what another program had changed since the last Apply, where
	// this one came upon it without having been asked to compare. Count is 0 if
	// nothing, or where that is not known.
	Repaired Difference
	// Retiring says what of another mode is still in the kernel, and what its cleanup
	// waits for, human-readable; empty: nothing.
	Retiring string
	// OwnFlows: connections may be translated by something else than table nat: by the mode, or
	// by one of which something may still be in the kernel; see Declaration.
	OwnFlows bool
	Counts
	// Tables count rules by table, where the implementation has tables.
	Tables map[string]TableCount
	// Failed: the kernel rejected something at first, such as rules of a rejected Service.
	Failed bool
}

// Object is a kind of kernel object.
type Object string

// Kinds of kernel objects.
const (
	Chains Object = "chains"
	Rules  Object = "rules"
	// SetEntries are those of all sets together.
	SetEntries Object = "set entries"
	// VirtualServers are those of IPVS, RealServers those of all of them together.
	VirtualServers Object = "virtual servers"
	RealServers    Object = "real servers"
	// Draining are those of RealServers that get no new connections and go once
	// theirs have ended.
	Draining Object = "draining real servers"
)

// Counts count objects of ours in the kernel, and in an audit those of others that
// look like ours.
type Counts map[Object]int

// Add returns the sums.
func (c Counts) Add(o Counts) Counts {
	out := make(Counts, max(len(c), len(o)))
	for _, one := range []Counts{c, o} {
		for object, n := range one {
			out[object] += n
		}
	}
	return out
}

// TableCount counts rules of one table.
type TableCount struct {
	// Rules are those of ours in the kernel, Written those that the call
	// has written.
	Rules, Written int
}

// VerifyOptions are how to compare.
type VerifyOptions struct {
	// Audit: another proxy may maintain the kernel. Nothing that an earlier call has written is
	// taken for granted, and what kube-proxy has besides and decides about no packet is
	// left out. Such a Verify costs little where neither the Ruleset nor the kernel has changed.
	Audit bool
}

// Difference is how the kernel differs from the desired state.
type Difference struct {
	// Count is the number of differences.
	Count int
	// Examples are up to MaxExamples of them, each a human-readable sentence.
	Examples []string
	// Findings are all of them, in any order, of an audit only. They belong to the
	// implementation; callers only read them.
	Findings []Finding
	// Drifted: the kernel differs from what the last Apply left there, so
	// another program has changed it. Otherwise the desired state has changed.
	Drifted bool
	// Warnings say what an Apply would warn of besides: see Result.
	Warnings []string
	Counts
}

// Finding is one difference.
type Finding struct {
	// Service is whose rules differ; zero where that is not known.
	Service ServiceName
	// Key stays the same for as long as both the desired and the actual state at that
	// place do.
	Key string
	// Text is a human-readable sentence.
	Text string
}

// DifferenceOf makes a Difference of findings, for an audit with all of them.
func DifferenceOf(found []Finding, o VerifyOptions) Difference {
	out := Difference{Count: len(found)}
	if o.Audit {
		out.Findings = found
	}
	for _, f := range found[:min(len(found), MaxExamples)] {
		out.Examples = append(out.Examples, f.Text)
	}
	return out
}
