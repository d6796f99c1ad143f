package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ErrUnsupported is wrapped by errors about what this node's kernel or tools lack. Another
// attempt only helps after an administrator has changed the node or the settings.
var ErrUnsupported = errors.New("not supported on this node")

// Family is an IP family.
type Family string

// IP families, as in NodeProxyRules.status.families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Unspecified returns the family's unspecified address, which stands for any address of the node.
func (f Family) Unspecified() netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Of reports whether a is an address of the family. An IPv4 address mapped into IPv6 is of
// neither.
func (f Family) Of(a netip.Addr) bool {
	if f == IPv4 {
		return a.Is4()
	}
	return a.Is6() && !a.Is4In6()
}

// Ruleset is the desired state of one IP family of the node, and what of it has changed since
// the last successful Apply. All its addresses are of the family. It belongs to the caller;
// implementations read it during a call and retain no reference to it. They may retain
// Services, which are never modified in a Ruleset, only replaced.
type Ruleset struct {
	// Mode is the mode to run: that of Node.Settings, or a fallback.
	Mode v1alpha1.ProxyMode
	Node Node
	// Services are all desired Services, including retained ones.
	Services map[ServiceName]*Service
	// Dirty names the Services that were added, replaced or removed since.
	Dirty map[ServiceName]struct{}
	// Full requests to read the kernel and compare everything: initially, after an error,
	// when Node has changed, and for a repair.
	Full bool
	// Repair: Full is set only because the last Verify has found changes by another program.
	Repair bool
	// Recheck: facts of the node that the implementation follows itself may have changed;
	// see Observer.
	Recheck bool
	// Preserve names Services whose state may be older than the kernel's, because it comes from
	// the checkpoint: only what the kernel lacks of them is added. It is nearly always empty.
	Preserve map[ServiceName]struct{}
	// Rest names rejected Services that need not be tried again, not even if Full: the kernel
	// retains its rules of them, and they remain rejected. Other rejected Services are tried
	// again. None of them is in Dirty.
	Rest map[ServiceName]struct{}
	// Pause, if not nil, reports whether other changes wait, so that a data plane may leave what is
	// left of a large Service for a later Apply: see Result.Unfinished. A full pass does not ask.
	Pause func() bool
	// Prune allows a full pass to remove what belongs to no Service in Services. Without it
	// only rules of Services in Services or Dirty are replaced or removed.
	Prune bool
}

// Node is what an implementation needs to know about the node.
type Node struct {
	// Settings are complete: no field is nil.
	Settings *v1alpha1.ProxySettings
	// Addresses are the Node's addresses of this family, the primary one first.
	Addresses []netip.Addr
	// PodCIDRs are the Node's pod ranges of this family.
	PodCIDRs []netip.Prefix
}

// MaxExamples bounds lists of examples.
const MaxExamples = 10

// Dataplane programs one IP family of the kernel with the rules of one mode, or of several:
// package modes joins those of all modes. Its methods are not called concurrently.
type Dataplane interface {
	// Supported returns nil, or an error that wraps ErrUnsupported and states what the node
	// lacks to run the mode of r with its settings, and what to do. It is called before a
	// full Apply.
	Supported(ctx context.Context, r *Ruleset) error
	// Apply makes the actual state the desired one. After an error each Service is served as
	// before or as desired, and the next call must be full. Services that the kernel
	// rejects are in the Result, not an error.
	Apply(ctx context.Context, r *Ruleset) (Result, error)
	// Verify compares the kernel to r and writes nothing. If the node has lost the family,
	// the error wraps ErrUnsupported.
	Verify(ctx context.Context, r *Ruleset, o VerifyOptions) (Difference, error)
	// Relinquish is called while another proxy is active and the agent writes nothing.
	// If that proxy serves, it removes the rules of modes that precede others; see
	// Declaration.PrecedesOthers. It returns which ones remain, human-readable; empty: none.
	Relinquish(ctx context.Context, serves bool) (remain string, err error)
	// Cleanup removes everything of ours from the kernel.
	Cleanup(ctx context.Context, o CleanupOptions) error
}

// ModeCleaner is the Dataplane of one mode beside others.
type ModeCleaner interface {
	Dataplane
	// CleanupMode removes from the kernel what serves only this mode, after another mode has been
	// applied completely. What both modes use stays and belongs to the other. What
	// connections depend on may stay for a while: then pending explains why, human-readable, and
	// the call is repeated. It finds what there is in the kernel, and costs little if there
	// is nothing.
	CleanupMode(ctx context.Context, r *Ruleset) (pending string, err error)
}

// Observer is a Dataplane that notices changes by itself. Its methods run until ctx is done,
// concurrently with the others.
type Observer interface {
	// Follow calls changed whenever facts of the node, such as the addresses of its
	// interfaces, require other rules than the last Apply has written. An Apply with
	// Ruleset.Recheck writes these.
	Follow(ctx context.Context, changed func())
	// Watch calls changed whenever another program may have changed what the last Apply left
	// in the kernel. It ignores our own calls, and changes of what is not ours cost next to
	// nothing.
	Watch(ctx context.Context, changed func(Change))
}

// Change is a change by another program of what an Apply left in the kernel, or a hint at one.
type Change struct {
	// By names the program, human-readable; empty: unknown.
	By string
	// Sure: something of ours is missing, unless another program had added it. Otherwise only
	// a Verify can find out.
	Sure bool
}

// CleanupOptions limit a Cleanup.
type CleanupOptions struct {
	// PreservedRanges are ranges of addresses whose objects an administrator manages: they stay. Nil:
	// those of the last Ruleset.
	PreservedRanges []netip.Prefix
}

// ParsePreserved parses preserved ranges. Errors name them like the setting, excludeCIDRs.
func ParsePreserved(cidrs []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for i, cidr := range cidrs {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("excludeCIDRs[%d]: %w", i, err)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// Spotter detects other proxies on the node, besides by their ports. Its methods are safe for
// concurrent use.
type Spotter interface {
	// OtherProxy returns the evidence for another active proxy, human-readable; empty: none.
	// It is called before every write and costs little. With an error it may still return
	// what it found.
	OtherProxy(ctx context.Context) (evidence string, err error)
	// Begin is called before we write. It removes from the kernel what an active proxy would
	// restore, and returns what other proxies have left besides, human-readable. From then
	// on, until End, OtherProxy also reports what appears anew. After an error it has not
	// begun.
	Begin(ctx context.Context) (leftovers []string, err error)
	// End is called when we write no longer.
	End()
}

type progressKey struct{}

// WithProgress returns a context whose work calls progress whenever a part of it has ended,
// successfully or not. That distinguishes slow work from stuck work.
func WithProgress(ctx context.Context, progress func()) context.Context {
	return context.WithValue(ctx, progressKey{}, progress)
}

// Progress reports that a part of the work of ctx has ended, such as a program.
// Implementations call it at least once a minute if they can.
func Progress(ctx context.Context) {
	if progress, ok := ctx.Value(progressKey{}).(func()); ok {
		progress()
	}
}
