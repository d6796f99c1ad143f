package scenarios

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest/ipvstest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nftablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/userspace"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// world is a World on a model of the kernel.
type world struct {
	*World
	kernel   *iptablesmodel.Kernel
	recorder *recorder
	// ipvs is the model that kernel is a part of; nil in other modes.
	ipvs *ipvstest.Kernel
	// nft is the model in mode NFTables, instead of kernel; nil in other modes.
	nft *nftablesmodel.Kernel
	// proxy is what the kernel redirects to in mode Userspace; nil in other modes.
	proxy *userspace.Proxy
	// instead are outcomes that differ in the world's mode.
	instead func(from, to string) (want string, differs bool)
	// mapped: IPv6 addresses stand for the IPv4 addresses of objects and packets.
	mapped bool
}

// newWorld makes a node with three IPv4 or two IPv6 addresses.
func newWorld(t *testing.T, family dataplane.Family) *world {
	sysctl := t.TempDir()
	for _, directory := range []string{"net/ipv4/conf/all", "net/netfilter"} {
		if err := os.MkdirAll(filepath.Join(sysctl, directory), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kernel := iptablesmodel.NewKernel(addresses4...)
	if family == dataplane.IPv6 {
		kernel.SetAddresses(addresses6...)
	}
	r := &recorder{Kernel: kernel}
	return &world{kernel: kernel, recorder: r, World: New(t, family, func() dataplane.Dataplane {
		return iptables.New(family, iptables.Options{Model: r, SysctlDirectory: sysctl})
	})}
}

// remove deletes a Service and its EndpointSlices.
func (w *world) remove(name string) {
	maps.DeleteFunc(w.services, func(n types.NamespacedName, _ *corev1.Service) bool { return n.Name == name })
	maps.DeleteFunc(w.slices, func(_ types.NamespacedName, s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] == name
	})
}

// save is both tables as iptables-save prints them.
func (w *world) save() string { return w.kernel.Save("filter") + w.kernel.Save("nat") }

// Who sends packets.
const (
	POD  = "POD"  // any pod on this node
	NODE = "NODE" // a process on this node
	LO   = "LO"   // a process on this node, from the loopback address
	EXT  = "EXT"  // a client outside the cluster
	BLK  = "BLK"  // a client outside the cluster and outside of source ranges
)

var sources = map[dataplane.Family]map[string]string{
	dataplane.IPv4: {POD: "10.0.0.2", NODE: "192.168.0.2", LO: "127.0.0.1", EXT: "203.0.113.2", BLK: "203.0.113.130"},
	dataplane.IPv6: {POD: "fd00::2", NODE: "2001:db8::2", LO: "::1", EXT: "2001:db8:99::2", BLK: "2001:db8:98::2"},
}

var podRange = map[dataplane.Family]netip.Prefix{
	dataplane.IPv4: netip.MustParsePrefix("10.0.0.0/8"), dataplane.IPv6: netip.MustParsePrefix("fd00::/56"),
}

// packet is what a sender, by name or address, sends to [protocol/]address:port.
func (w *world) packet(from, to string) kernelmodel.Packet {
	family := w.Family
	if w.mapped {
		family = dataplane.IPv4
	}
	if name, ok := sources[family][from]; ok {
		from = name
	}
	pod := podRange[family].Contains(netip.MustParseAddr(from))
	from, to = w.tr(from), w.tr(to)
	p := kernelmodel.Packet{Protocol: "tcp", Source: netip.MustParseAddr(from)}
	if protocol, rest, ok := strings.Cut(to, "/"); ok {
		p.Protocol, to = protocol, rest
	}
	p.Destination = netip.MustParseAddrPort(to)
	if w.ipvs != nil && p.Source == netip.MustParseAddr(w.tr(sources[family][NODE])) && w.kernel.Balancer.Bound(p.Destination.Addr()) {
		p.Source = p.Destination.Addr() // the kernel chooses a local address for a local destination
	}
	switch {
	case w.local(p.Source): // of the node itself
	case pod:
		p.In = "cni0"
	default:
		p.In = "eth0"
	}
	return p
}

// local reports whether a is an address of the node.
func (w *world) local(a netip.Addr) bool {
	if w.nft != nil {
		return w.nft.Local(a)
	}
	return slices.Contains(w.kernel.Addresses(), a) || w.ipvs != nil && w.kernel.Balancer.Bound(a)
}

// trace returns what may become of a packet.
func (w *world) trace(from, to string) []kernelmodel.Outcome {
	w.Helper()
	trace := w.kernel.Trace
	if w.nft != nil {
		trace = w.nft.Trace
	}
	packet := w.packet(from, to)
	outcomes, err := trace(packet)
	if err != nil {
		w.Fatal(err)
	}
	if w.proxy != nil {
		return w.throughProxy(packet, outcomes)
	}
	return outcomes
}

// throughProxy returns what becomes of a connection by the endpoints among which the proxy chooses.
func (w *world) throughProxy(p kernelmodel.Packet, outcomes []kernelmodel.Outcome) (out []kernelmodel.Outcome) {
	protocol := v1alpha1.Protocol(strings.ToUpper(p.Protocol))
	for _, o := range outcomes {
		endpoints, redirected := w.proxy.Endpoints(protocol, p.Destination, o.Endpoint)
		if !redirected {
			out = append(out, o)
			continue
		}
		for _, e := range endpoints {
			one := o
			one.Endpoint, one.Share, one.Masqueraded = e, o.Share/float64(len(endpoints)), true
			out = append(out, one)
		}
	}
	return out
}

// sees checks what becomes of a packet. want is one of the fates, or the
// endpoints, which all have the same share, and +M or -M for masqueraded or not.
// An endpoint without port has port 80. An endpoint with a mark of its own stands
// apart from the others: a+M b -M.
func (w *world) sees(from, to, want string) {
	w.Helper()
	if w.instead != nil {
		if other, ok := w.instead(from, to); ok {
			want = other
		}
	}
	outcomes := w.trace(from, to)
	total := 0.0
	var got, paths []string
	for _, o := range outcomes {
		total += o.Share
		got = append(got, outcomeText(&o))
		path := fmt.Sprintf("%s (%.4f) by", outcomeText(&o), o.Share)
		for _, s := range o.Path {
			path += "\n    " + s.String()
		}
		paths = append(paths, path)
	}
	slices.Sort(got)
	expected := w.expected(want)
	if w.proxy != nil && !strings.HasPrefix(to, "sctp/") { // all endpoints see the node's address
		for i, one := range expected {
			if endpoint, cut := strings.CutSuffix(one, "-M"); cut && strings.Contains(endpoint, ":") {
				expected[i] = endpoint + "+M"
			}
		}
		slices.Sort(expected)
	}
	if !slices.Equal(got, expected) {
		w.Errorf("%s → %s: %s, want %s\n  %s", from, to, got, expected, strings.Join(paths, "\n  "))
		return
	}
	for _, o := range outcomes {
		if share := 1 / float64(len(outcomes)); math.Abs(o.Share-share) > 1e-8 || math.Abs(total-1) > 1e-9 {
			w.Errorf("%s → %s: %s has a share of %.10f, want %.10f", from, to, outcomeText(&o), o.Share, share)
		}
	}
}

func outcomeText(o *kernelmodel.Outcome) string {
	masquerade := "-M"
	if o.Masqueraded {
		masquerade = "+M"
	}
	if o.Fate == kernelmodel.Delivered {
		return o.Endpoint.String() + masquerade
	}
	return string(o.Fate) + masquerade
}

// expected reads the text of sees.
func (w *world) expected(text string) []string {
	w.Helper()
	words := strings.Fields(text)
	masquerade := ""
	switch last := words[len(words)-1]; last {
	case "+M", "-M":
		masquerade, words = last, words[:len(words)-1]
	}
	var out []string
	for _, word := range words {
		switch kernelmodel.Fate(word) {
		case kernelmodel.Rejected, kernelmodel.Dropped, kernelmodel.Passed, kernelmodel.Accepted:
			out = append(out, word+"-M")
			continue
		}
		ep, own := word, masquerade
		if cut, ok := strings.CutSuffix(word, "+M"); ok {
			ep, own = cut, "+M"
		}
		if own == "" {
			w.Fatalf("%q does not state whether to masquerade", text)
		}
		if ep = w.tr(ep); !strings.HasPrefix(ep, "[") && strings.Count(ep, ":") != 1 {
			ep = netip.AddrPortFrom(netip.MustParseAddr(ep), 80).String()
		}
		out = append(out, ep+own)
	}
	slices.Sort(out)
	return out
}
