package dataplane

import (
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Result is what an Apply did.
type Result struct {
	// Kind is whether everything was read and compared.
	Kind v1alpha1.SyncKind
	// ServicesChanged is the number of Services whose rules were written.
	ServicesChanged int
	// Rejected are all Services that the kernel rejects, in this call or earlier, with the
	// reason. Their previous rules stay, except those of Reduced.
	Rejected map[ServiceName]string
	// Reduced are those of Rejected that are programmed without addresses and ports that
	// another Service or program has: as they are programmed.
	Reduced map[ServiceName]*Service
	// Suspected are those of Rejected that may not be at fault: there was no time to try each
	// alone.
	Suspected map[ServiceName]struct{}
	// Unfinished are all Services of which this call or an earlier one has left a part for a later
	// Apply with them in Dirty: see Ruleset.Pause. Their packets meet former or desired
	// rules, in mode IPVS with endpoints of both.
	Unfinished map[ServiceName]struct{}
	// Warnings are failures besides the rules of Services, human-readable, with what to do.
	// At most MaxExamples.
	Warnings []string
	// Notes are differences between what Services ask for and how they are served,
	// human-readable. Unlike with Warnings, another try changes nothing. At most
	// MaxExamples.
	Notes []string
	// Repaired is what another program had changed since the last Apply, if this one found it
	// although it was not asked to compare. Count is 0 if that is nothing or unknown.
	Repaired Difference
	// CleanupPending is what the cleanup of another mode waits for, human-readable; empty: nothing
	// is left of one.
	CleanupPending string
	// OwnFlows: something other than table nat may translate connections: the mode, or another
	// one of which something may still be in the kernel; see Declaration.
	OwnFlows bool
	Counts
	// Tables count rules by table, if the implementation has tables.
	Tables map[string]TableCount
	// Instead is what the kernel was to have, if it was another Ruleset than that of the call, because
	// something else serves a part of it.
	Instead *Ruleset
	// Failed: the kernel rejected something initially, such as rules of a rejected Service.
	Failed bool
}

// Object is a kind of kernel object.
type Object string

// Kinds of kernel objects.
const (
	Chains Object = "chains"
	Rules  Object = "rules"
	// SetEntries are those of all sets.
	SetEntries Object = "set entries"
	// VirtualServers are those of IPVS, RealServers those of all of them.
	VirtualServers Object = "virtual servers"
	RealServers    Object = "real servers"
	// Draining are those of RealServers that get no new connections and are deleted once
	// theirs have ended.
	Draining Object = "draining real servers"
	// Elements are those of all nftables sets and maps.
	Elements Object = "elements"
)

// ElementsOf are the elements of one nftables set or map.
func ElementsOf(set string) Object { return Object(elementsOf + set) }

const elementsOf = "elements of "

// Sets returns the number of elements by nftables set or map.
func (c Counts) Sets() map[string]int {
	out := map[string]int{}
	for object, n := range c {
		if set, is := strings.CutPrefix(string(object), elementsOf); is {
			out[set] = n
		}
	}
	return out
}

// Counts count our objects in the kernel, and in an audit those that look like ours.
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
	// Rules are ours in the kernel, Written those that the call has written.
	Rules, Written int
}

// VerifyOptions determine how to compare.
type VerifyOptions struct {
	// Audit: another proxy may maintain the kernel. Verify does not rely on earlier writes, and
	// omits what only kube-proxy has and affects no packet. It costs little if neither the
	// Ruleset nor the kernel has changed.
	Audit bool
	// Suspected: Verify may compare only what events report of other programs.
	Suspected bool
}

// Difference is how the kernel differs from the desired state.
type Difference struct {
	// Count is the number of differences.
	Count int
	// Examples are up to MaxExamples of them, each a human-readable sentence.
	Examples []string
	// Findings are all of them, in any order, only in an audit. They belong to the
	// implementation; callers only read them.
	Findings []Finding
	// Drifted: the kernel differs from what the last Apply left there, so another program has
	// changed it. Otherwise the desired state has changed.
	Drifted bool
	// Unread: the kernel's own count of changes showed that there was nothing to read.
	Unread bool
	// Warnings are those that an Apply would return; see Result.
	Warnings []string
	Counts
}

// Finding is one difference.
type Finding struct {
	// Service is the one whose rules differ; zero: unknown.
	Service ServiceName
	// Key stays the same as long as both the desired and the actual state do.
	Key string
	// Text is a human-readable sentence.
	Text string
}

// DifferenceOf converts findings. For an audit the Difference has all of them.
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
