// Package dataplane is the contract between the agent, which knows what a node
// should hold, and the packages that make its kernel hold it. It knows no
// kernel library.
//
// One implementation serves one IP family, so that one family's failure does
// not stop the other. A Ruleset and what it points to hold addresses of one
// family only.
package dataplane

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ErrUnsupported is wrapped by errors that say that this node's kernel or
// tools cannot do what is asked. Repeating the call helps only after somebody
// has changed the node or the settings.
var ErrUnsupported = errors.New("not supported on this node")

// Family is an IP family.
type Family string

// IP families, as they stand in NodeProxyRules.status.families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// Of reports whether a is an address of the family. An IPv4 address mapped
// into IPv6 is of neither.
func (f Family) Of(a netip.Addr) bool {
	if f == IPv4 {
		return a.Is4()
	}
	return a.Is6() && !a.Is4In6()
}

// ServiceName names a Service.
type ServiceName struct {
	Namespace string
	Name      string
}

// String returns namespace/name.
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n ServiceName) Compare(o ServiceName) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, o.Name)
}

// SeveralNamespaces reports whether Services are not all of one namespace. What
// is wrong with those of one may be the doing of whoever may write there.
func SeveralNamespaces(names iter.Seq[ServiceName]) bool {
	first, found := "", false
	for n := range names {
		if found && n.Namespace != first {
			return true
		}
		first, found = n.Namespace, true
	}
	return false
}

// Ruleset is what one IP family of the node should hold, and what of it has
// changed since the last Apply that returned no error. It belongs to the
// caller; implementations read it during a call and keep no reference to it,
// though they may keep the Services, which are never changed once they are in
// a Ruleset, only replaced.
type Ruleset struct {
	// Mode is the mode to run: that of Node.Settings, or another one where the
	// node falls back.
	Mode v1alpha1.ProxyMode
	// Node holds the node's settings and facts.
	Node Node
	// Services holds every Service that is wanted, held ones too.
	Services map[ServiceName]*Service
	// Dirty names the Services that were added, replaced or taken out since.
	Dirty map[ServiceName]struct{}
	// Full asks to read the kernel and compare all of it: at the start, after
	// an error, when Node changed, and to repair.
	Full bool
	// Recheck says that facts of the node that the implementation follows by
	// itself may have changed since; see Follower.
	Recheck bool
	// Keep names Services whose state may be older than what the kernel holds,
	// because it comes from the last good set on disk: what the kernel holds of
	// them stays as it is, only what it lacks is added. Nearly always empty.
	Keep map[ServiceName]struct{}
	// Rest names Services that an earlier Apply has reported as refused and that
	// this one need not try, be it full: the kernel keeps what it has of them, and
	// they stay refused. Those that are not named are tried again. It names none of
	// Dirty.
	Rest map[ServiceName]struct{}
	// Prune allows a full pass to remove what is in the kernel but belongs to
	// no Service in Services. Without it only rules of Services in Services or
	// in Dirty are replaced or removed.
	Prune bool
}

// Node is what an implementation needs to know of the node.
type Node struct {
	// Settings are complete: no field is nil.
	Settings *v1alpha1.ProxySettings
	// Addresses are the Node's addresses of this family, the primary first.
	Addresses []netip.Addr
	// PodCIDRs are the Node's pod ranges of this family.
	PodCIDRs []netip.Prefix
}

// Service is a Service as one IP family of this node should serve it.
type Service struct {
	Name ServiceName
	// Precedence is zero for a Service that has nothing but cluster IPs.
	Precedence      Precedence
	ClusterIP       netip.Addr
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	// NodeAddresses are those of ExternalIPs and LoadBalancerIPs that are addresses of
	// Nodes, this one's or others', sorted. Nearly always empty.
	NodeAddresses []netip.Addr
	// SourceRanges restrict who may use LoadBalancerIPs. None: no restriction.
	SourceRanges []netip.Prefix
	// ExternalLocal: external traffic policy Local is in effect.
	ExternalLocal bool
	// InternalLocal: internal traffic policy Local is in effect.
	InternalLocal bool
	// AffinitySeconds is how long a silent client keeps its endpoint. 0: no
	// session affinity.
	AffinitySeconds int32
	// HealthCheckNodePort is 0 for none.
	HealthCheckNodePort uint16
	// LocalReady is the number of distinct IP addresses of the Service's ready
	// endpoints on this node, over all its ports. 0 without HealthCheckNodePort,
	// which is what it is for.
	LocalReady int
	// IPVSScheduler is empty for the node's.
	IPVSScheduler string
	Ports         []Port
}

// ExternallyAccessible reports whether the port answers on anything besides
// the cluster IP.
func (s *Service) ExternallyAccessible(p *Port) bool {
	return p.NodePort != 0 || len(s.ExternalIPs) > 0 || len(s.LoadBalancerIPs) > 0
}

// OfOther reports whether one of the Service's addresses is another Node's: see OfOthers.
func (s *Service) OfOther(a netip.Addr, own []netip.Addr) bool {
	return s.OfNode(a) && !slices.Contains(own, a)
}

// OfNode reports whether one of the Service's addresses is a Node's.
func (s *Service) OfNode(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(s.NodeAddresses, a, netip.Addr.Compare)
	return found
}

// OfOthers are those of the Service's addresses that are other Nodes', where own are this
// node's. In mode IPVS they are left to these Nodes.
func (s *Service) OfOthers(own []netip.Addr) map[netip.Addr]struct{} {
	if len(s.NodeAddresses) == 0 {
		return nil
	}
	out := make(map[netip.Addr]struct{}, len(s.NodeAddresses))
	for _, a := range s.NodeAddresses {
		out[a] = struct{}{}
	}
	for _, a := range own {
		delete(out, a)
	}
	return out
}

// Port is one port of a Service with the endpoints selected for this node.
// Lists are sorted by the string form of their entries.
type Port struct {
	Name     string
	Protocol v1alpha1.Protocol
	Port     uint16
	NodePort uint16
	// Cluster are the endpoints for traffic under policy Cluster: ready ones
	// after topology, else terminating ones. Empty for a port that only ever
	// serves under policy Local.
	Cluster []netip.AddrPort
	// Local are the endpoints for traffic under policy Local: this node's ready
	// ones, else its terminating ones. Empty where no policy Local is in effect.
	Local []netip.AddrPort
	// Available: some endpoint on some node is ready or terminating. It
	// distinguishes "no endpoint" (reject) from "no local endpoint" (drop).
	Available bool
	// Members are this node's endpoints in any state.
	Members []netip.AddrPort
	// Serving are all endpoints on any node that receive traffic: ready and
	// terminating ones, whatever policies and hints say: tracked flows to them are
	// kept. Empty for SCTP. For TCP they are those of the last change of the
	// other lists.
	Serving []netip.AddrPort
	// Lost are addresses of the Service on which this port is not served,
	// because another Service has the better claim to address, port and
	// protocol, sorted. A lost node port is 0 in NodePort instead. Nearly always empty.
	Lost []netip.Addr
}

// Serves reports whether the port is served on a, an address of its Service.
func (p *Port) Serves(a netip.Addr) bool {
	_, lost := slices.BinarySearchFunc(p.Lost, a, netip.Addr.Compare)
	return !lost
}

// Result is what an Apply did.
type Result struct {
	// Kind says whether the kernel was read and compared in full.
	Kind v1alpha1.SyncKind
	// ServicesChanged is the number of Services whose rules were written.
	ServicesChanged int
	// Refused are Services that the kernel would not take, with the reason. All
	// of them, not only those of this call. Their former rules stay, but for those of
	// Reduced.
	Refused map[ServiceName]string
	// Reduced are those of Refused that are programmed all the same, without addresses and
	// ports that another Service or another program has: as they are programmed.
	Reduced map[ServiceName]*Service
	// Suspected are those of Refused that may not be at fault: there was no time
	// to try each by itself.
	Suspected map[ServiceName]struct{}
	// Warnings say what could not be done besides the rules of Services, for
	// people: each names the matter and what to do. At most MaxExamples.
	Warnings []string
	// Notes say what is served otherwise than Services ask, human-readable. Unlike
	// Warnings, trying again changes nothing. At most MaxExamples.
	Notes []string
	// Repaired is what somebody else had changed since the last Apply, where
	// this one came upon it without having been asked to look. Count is 0 if
	// nothing, or where that is not known.
	Repaired Difference
	// Retiring says what of another mode the kernel still holds, and what that
	// waits for, for people; empty: nothing.
	Retiring string
	// Lingering reports whether the kernel may still hold something of another mode,
	// by which connections go on.
	Lingering bool
	Counts
	// Tables count rules by table, where the implementation has tables.
	Tables map[string]TableCount
	// Failed: something was not taken at first, as rules of a refused Service.
	Failed bool
}

// Counts count what the kernel holds of ours, and in an Audit of others that
// looks like it.
type Counts struct {
	// Chains and Rules are those of iptables.
	Chains, Rules int
	// SetEntries are those of all ipsets together.
	SetEntries int
	// VirtualServers are those of IPVS, RealServers those of all of them together.
	VirtualServers, RealServers int
	// Draining are those of RealServers that get no new connections and go once
	// theirs have ended.
	Draining int
}

// Add returns the sums.
func (c Counts) Add(o Counts) Counts {
	return Counts{
		Chains: c.Chains + o.Chains, Rules: c.Rules + o.Rules, SetEntries: c.SetEntries + o.SetEntries,
		VirtualServers: c.VirtualServers + o.VirtualServers, RealServers: c.RealServers + o.RealServers,
		Draining: c.Draining + o.Draining,
	}
}

// TableCount counts rules of one table.
type TableCount struct {
	// Rules are those of ours that the kernel holds, Written those that the call
	// has written.
	Rules, Written int
}

// Difference is how the kernel differs from what is wanted.
type Difference struct {
	// Count is the number of differences.
	Count int
	// Examples are up to ten of them, each a sentence for people.
	Examples []string
	// Drifted: the kernel differs from what the last Apply left there, so
	// somebody else has changed it. Otherwise what is wanted has changed.
	Drifted bool
	// Warnings say what an Apply would warn of besides: see Result.
	Warnings []string
	Counts
}

// Follower is a Dataplane whose rules depend on facts of the node that change
// by themselves, such as the addresses of its interfaces.
type Follower interface {
	// Follow calls changed whenever what the last Apply made the kernel hold no
	// longer fits such facts, until ctx is done. An Apply of a Ruleset with
	// Recheck takes them up. It may run beside the other methods.
	Follow(ctx context.Context, changed func())
}

// Spotter looks for what shows, besides its ports, that another proxy serves
// the Services of this node. Its methods may be called from several goroutines.
type Spotter interface {
	// OtherProxy returns what shows that another proxy is active, for people;
	// empty: nothing does. It is called before every write, so it costs little.
	// With an error it may return a sign all the same: what it could look at.
	OtherProxy(ctx context.Context) (sign string, err error)
	// Begin says that we are about to write. It removes from the kernel what a
	// live proxy would make again, and returns, for people, what other proxies
	// have left besides. From now on OtherProxy also returns what appears that
	// only shows a proxy by appearing, until End. After an error it has not
	// begun.
	Begin(ctx context.Context) (leftovers []string, err error)
	// End says that we write no longer.
	End()
}

// Retirer is a Dataplane that can make room for one of another mode that serves
// the same Services.
type Retirer interface {
	// Retire removes from the kernel what serves this mode alone, after another
	// mode's Apply has made the kernel hold all that is wanted. What both modes
	// use is the other's by then and stays. Where connections still depend on
	// something it may stay for a while: pending is why, for people, and the call
	// is to be repeated; empty: nothing is left. It costs little where there is
	// nothing to remove, and knows what is there without having written it.
	Retire(ctx context.Context, r *Ruleset) (pending string, err error)
}

// Chooser is a Dataplane that has several modes. Its Apply asks what the mode
// of the Ruleset needs of the node; Supported is what all modes need.
type Chooser interface {
	// SupportsMode is Supported for one mode, whichever runs.
	SupportsMode(ctx context.Context, mode v1alpha1.ProxyMode, n *Node) error
}

// MaxExamples bounds lists of examples.
const MaxExamples = 10

// Dataplane makes one IP family of the kernel hold a Ruleset. Its methods are
// not called concurrently.
type Dataplane interface {
	// Supported returns nil, or an error that wraps ErrUnsupported and says what
	// is missing for n and what to do.
	Supported(ctx context.Context, n *Node) error
	// Apply makes the kernel hold r. When it returns an error, each Service is
	// served as before or as wanted, and the next call must be full. Services
	// that the kernel refuses are in the Result, not an error.
	Apply(ctx context.Context, r *Ruleset) (Result, error)
	// Verify compares the kernel to r and writes nothing. Where the node has
	// come to lack the family, the error wraps ErrUnsupported.
	Verify(ctx context.Context, r *Ruleset) (Difference, error)
	// Cleanup removes what is ours from the kernel.
	Cleanup(ctx context.Context) error
}

// Excluder is a Dataplane that may be told which address ranges
// spec.settings.ipvs.excludeCIDRs names, for a Cleanup that no Ruleset has come
// before. The virtual servers there stay.
type Excluder interface {
	Exclude(cidrs []string) error
}
