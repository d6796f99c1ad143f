package detection

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// CanaryChain is the name of kube-proxy's canaries.
const CanaryChain = "KUBE-PROXY-CANARY"

// Canary is kube-proxy's empty chain of that name in one table, by which it detects that its
// rules were flushed. A live kube-proxy creates it again.
type Canary struct {
	Family dataplane.Family
	// Legacy: in the legacy variant of iptables, not in nf_tables.
	Legacy bool
	// Table is mangle, nat or filter.
	Table string
}

// String names it human-readable.
func (c Canary) String() string {
	variant := "nf_tables"
	if c.Legacy {
		variant = "legacy"
	}
	return fmt.Sprintf("chain %s in table %s of %s (%s)", CanaryChain, c.Table, c.Family, variant)
}

// place is the node. What does not exist, or cannot because the kernel lacks it, is no error.
type place interface {
	device(name string) (bool, error)
	// table returns the handle of a table of nf_tables, which another table of that name does not
	// have; 0: there is none.
	table(family dataplane.Family, name string) (uint64, error)
	canary(c Canary) (bool, error)
	// leads reports whether packets to an address leave through a device.
	leads(address, device string) (bool, error)
	// ciliumReplaces asks a Cilium agent whether it replaces kube-proxy. Known is false if
	// none answers.
	ciliumReplaces(ctx context.Context) (replaces, known bool)
}

// Options are what a Spotter needs.
type Options struct {
	// Remove removes canaries from the kernel. That some cannot be removed, because other
	// rules jump to them, is no error.
	Remove func(ctx context.Context, canaries []Canary) error
	// OwnLink reports whether a network link may be one of our own modes', so that it
	// indicates no other proxy. It may be called from any goroutine. Nil: it never is.
	OwnLink func(name string) bool
	// Now is the time.
	Now func() time.Time
}

// Spotter implements dataplane.Spotter.
type Spotter struct {
	options Options
	place   place

	mu    sync.Mutex // guards everything below
	begun bool
	// former are the indicators that existed at Begin, of those that must appear, with their
	// identities.
	former map[string]uint64
	// cilium is the last answer of its agent, asked at ciliumAsked.
	cilium      bool
	ciliumAsked time.Time
}

var _ dataplane.Spotter = (*Spotter)(nil)

// New returns a Spotter for the node, in the network namespace of the calling
// threads.
func New(o Options) *Spotter {
	return &Spotter{options: o, place: &node{ciliumSocket: "/var/run/cilium/cilium.sock"}, former: map[string]uint64{}}
}

// indicator is something that shows another proxy.
type indicator struct {
	// what it is, human-readable, and which proxy creates it.
	what, who string
	// appears: it indicates a proxy only if it appears.
	appears bool
	// left is its effect when it is left behind, and how to remove it; empty: we take it over
	// or remove it.
	left string
	// link is the network link that it is; empty: none that may be ours. See
	// Options.OwnLink.
	link string
	// find returns the identity of what exists, which one that is made later may not have; 0:
	// nothing exists.
	find func(place) (uint64, error)
}

// found is the identity of what has none.
func found(exists bool, err error) (uint64, error) {
	if exists {
		return 1, err
	}
	return 0, err
}

// canaries are where kube-proxy creates its canary. Of the legacy variant the table that costs
// little to read is enough: kube-proxy begins with it.
func canaries() []Canary {
	var out []Canary
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		for _, table := range []string{"mangle", "nat", "filter"} {
			out = append(out, Canary{Family: family, Table: table})
		}
		out = append(out, Canary{Family: family, Legacy: true, Table: "mangle"})
	}
	return out
}

// all are the indicators except that of Cilium.
func all() []indicator {
	device := func(name string) func(place) (uint64, error) {
		return func(p place) (uint64, error) { return found(p.device(name)) }
	}
	var out []indicator
	for _, c := range canaries() {
		out = append(out, indicator{
			what: c.String(), who: "kube-proxy", appears: true,
			left: "unmanaged rules jump to it, so a kube-proxy that starts here might not be detected; remove those rules",
			find: func(p place) (uint64, error) { return found(p.canary(c)) },
		})
	}
	for family, name := range map[dataplane.Family]string{dataplane.IPv4: "ip", dataplane.IPv6: "ip6"} {
		out = append(out, indicator{
			what: "nf_tables table " + name + " kube-proxy", who: "kube-proxy in mode nftables", appears: true,
			find: func(p place) (uint64, error) { return p.table(family, "kube-proxy") },
		})
	}
	const ifGone = "if it no longer runs on this node, remove that with "
	return append(out,
		indicator{
			what: "device kube-ipvs0", who: "kube-proxy in mode ipvs", appears: true, link: "kube-ipvs0",
			find: device("kube-ipvs0"),
		},
		indicator{
			what: "device kube-dummy-if", who: "kube-router as service proxy", left: ifGone + `"ip link delete kube-dummy-if"`,
			find: device("kube-dummy-if"),
		},
		indicator{
			what: "device bpfin.cali", who: "Calico with its eBPF data plane", left: ifGone + `"ip link delete bpfin.cali"`,
			find: device("bpfin.cali"),
		},
		indicator{
			what: "device ovn-k8s-mp0", who: "OVN-Kubernetes, which serves Services itself", left: ifGone + `"ovs-vsctl del-port ovn-k8s-mp0"`,
			find: device("ovn-k8s-mp0"),
		},
		indicator{
			what: "the route to 169.254.0.253 through device antrea-gw0", who: "Antrea with antreaProxy.proxyAll", left: ifGone + `"ip route delete 169.254.0.253 dev antrea-gw0"`,
			find: func(p place) (uint64, error) { return found(p.leads("169.254.0.253", "antrea-gw0")) },
		},
	)
}

// OtherProxy implements dataplane.Spotter.
func (s *Spotter) OtherProxy(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, one := range all() {
		if one.appears && !s.begun {
			continue
		}
		identity, err := one.find(s.place)
		errs = append(errs, err)
		switch {
		case err != nil:
		case identity == 0:
			delete(s.former, one.what)
		case !one.appears:
			return fmt.Sprintf("%s exists, as created by %s; %s", one.what, one.who, one.left), nil
		case s.owns(one.link):
			s.former[one.what] = identity
		case s.former[one.what] != identity:
			return fmt.Sprintf("%s has appeared, as created by %s", one.what, one.who), nil
		}
	}
	if s.ciliumReplaces(ctx) {
		return "the Cilium agent on this node reports that it replaces kube-proxy; set kubeProxyReplacement to false in Cilium's configuration to let this agent serve Services", nil
	}
	return "", errors.Join(errs...)
}

// owns reports whether a network link may be ours.
func (s *Spotter) owns(link string) bool {
	return link != "" && s.options.OwnLink != nil && s.options.OwnLink(link)
}

// ciliumPause is the time between questions to a Cilium agent.
const ciliumPause = 10 * time.Second

// ciliumReplaces reports whether Cilium replaces kube-proxy. What its agent has loaded into the
// kernel works without it, so its last answer counts while its device exists. The caller holds
// mu.
func (s *Spotter) ciliumReplaces(ctx context.Context) bool {
	now := s.options.Now()
	if !s.ciliumAsked.IsZero() && now.Sub(s.ciliumAsked) < ciliumPause {
		return s.cilium
	}
	s.ciliumAsked = now
	if replaces, known := s.place.ciliumReplaces(ctx); known {
		s.cilium = replaces
	} else if s.cilium {
		s.cilium, _ = s.place.device("cilium_host")
	}
	return s.cilium
}

// Begin implements dataplane.Spotter.
func (s *Spotter) Begin(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Canary
	for _, c := range canaries() {
		// One that cannot be read cannot be removed either; OtherProxy reports the error.
		if exists, err := s.place.canary(c); err == nil && exists {
			found = append(found, c)
		}
	}
	if len(found) > 0 {
		if err := s.options.Remove(ctx, found); err != nil {
			return nil, fmt.Errorf("removing kube-proxy's canaries: %w", err)
		}
	}
	var leftovers []string
	clear(s.former)
	for _, one := range all() {
		if !one.appears {
			continue
		}
		if identity, err := one.find(s.place); err == nil && identity != 0 {
			s.former[one.what] = identity
			if one.left == "" {
				continue
			}
			leftovers = append(leftovers, fmt.Sprintf("%s is left behind, as created by %s: %s", one.what, one.who, one.left))
		}
	}
	s.begun = true
	return leftovers, nil
}

// End implements dataplane.Spotter.
func (s *Spotter) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = false
}
