package policies

import "slices"

// RejectedChange is a Service that nodes reject after a change by a policy.
type RejectedChange struct {
	Namespace string
	// Changed: the Service itself has changed as well, so either may be the cause.
	Changed bool
}

// Halt says for which Services a change by a policy has halted. Zero: for none.
type Halt struct {
	// All: the change has halted for every Service that does not have it yet.
	All bool
	// Namespaces are those whose Services wait, sorted; empty if all do.
	Namespaces []string
}

// HaltOf decides for which Services a change has halted, by the Services that nodes reject after
// it. A Service that has not changed itself is rejected because of the policy: the change halts for
// all. A user who can edit the Services of a namespace can cause a rejection at any time by
// changing them: then only the Services of that namespace wait, however many namespaces the user
// has.
func HaltOf(rejected []RejectedChange) Halt {
	var h Halt
	for _, r := range rejected {
		if !r.Changed {
			return Halt{All: true}
		}
		h.Namespaces = append(h.Namespaces, r.Namespace)
	}
	slices.Sort(h.Namespaces)
	h.Namespaces = slices.Compact(h.Namespaces)
	return h
}

// Holds reports whether the Services of a namespace wait.
func (h Halt) Holds(namespace string) bool {
	return h.All || slices.Contains(h.Namespaces, namespace)
}
