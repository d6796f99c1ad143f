package dataplane

import (
	"context"
	"fmt"
)

// Finding is one place where the kernel differs from what is wanted.
type Finding struct {
	// Service is the one that is concerned; zero where that cannot be told.
	Service ServiceName
	// Key stays the same for as long as both what is wanted and what the kernel
	// holds at that place do.
	Key string
	// Text is a sentence for people.
	Text string
}

// Audit is how the kernel differs from what is wanted, beside a proxy that may
// be another one.
type Audit struct {
	// Findings are all differences, in any order. Belongs to the implementation;
	// whoever gets it only reads it.
	Findings []Finding
	// Warnings say what an Apply would warn of besides: see Result.
	Warnings []string
	Counts
}

// Auditor is a Dataplane that can compare beside another proxy.
type Auditor interface {
	// Audit compares the kernel to r and writes nothing. Unlike Verify it takes
	// nothing that an earlier call has written for granted, and leaves out what
	// kube-proxy has besides and decides about no packet. It costs little where
	// neither r nor the kernel has changed. Errors are those of Verify.
	Audit(ctx context.Context, r *Ruleset) (Audit, error)
}

// Audit compares the kernel to each family's Ruleset.
func (f *Fanout) Audit(ctx context.Context, rulesets map[Family]*Ruleset) map[Family]Outcome[Audit] {
	return each(f, rulesets, func(d Dataplane, r *Ruleset) (Audit, error) {
		auditor, ok := d.(Auditor)
		if !ok {
			return Audit{}, fmt.Errorf("%w: enforcement Audit in this mode", ErrUnsupported)
		}
		return auditor.Audit(ctx, r)
	})
}
