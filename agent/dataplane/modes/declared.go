package modes

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nftablesmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// declarations are those of all modes, by precedence.
var declarations = []dataplane.Declaration{nftables.Declaration(), iptables.Declaration(), ipvs.Declaration()}

// Declarations returns those of all modes, by precedence.
func Declarations() []dataplane.Declaration { return slices.Clone(declarations) }

// Of returns the Declaration of a mode. An unknown one has no properties and comes last.
func Of(mode v1alpha1.ProxyMode) dataplane.Declaration {
	for _, d := range declarations {
		if d.Mode == mode {
			return d
		}
	}
	return dataplane.Declaration{Mode: mode, Precedence: math.MaxInt}
}

// Baseline returns the mode that every node is expected to run.
func Baseline() v1alpha1.ProxyMode {
	return declarations[slices.IndexFunc(declarations, func(d dataplane.Declaration) bool { return d.Baseline })].Mode
}

// Fallbacks returns the modes to run, in order, if a node cannot run the one of its settings.
func Fallbacks(settings *v1alpha1.ProxySettings) []v1alpha1.ProxyMode {
	if *settings.Fallback == v1alpha1.FallbackNone {
		return nil
	}
	return []v1alpha1.ProxyMode{v1alpha1.ProxyMode(*settings.Fallback)}
}

// Model is the data plane of a mode with the model of the kernel that it programs.
type Model struct {
	dataplane.Dataplane
	Kernel Kernel
}

// Kernel is the model of a kernel.
type Kernel interface {
	// Trace returns the possible outcomes of a packet, sorted by endpoint, and changes nothing.
	Trace(p kernelmodel.Packet) ([]kernelmodel.Outcome, error)
	// Local reports whether packets to an address stay on the node.
	Local(a netip.Addr) bool
}

// models return the data plane and the kernel of a node with these addresses.
var models = map[v1alpha1.ProxyMode]func(dataplane.Family, []netip.Addr) *Model{
	v1alpha1.ModeIPTables: func(family dataplane.Family, addresses []netip.Addr) *Model {
		tables := iptablesmodel.NewKernel(addresses...)
		return &Model{iptables.New(family, iptables.Options{Modes: Declarations(), Model: tables}), tables}
	},
	v1alpha1.ModeIPVS: func(family dataplane.Family, addresses []netip.Addr) *Model {
		kernel := ipvsmodel.New(family, addresses...)
		rules := iptables.NewFixedRules(ipvs.Declaration(), family, iptables.Options{Modes: Declarations(), Model: kernel.Tables})
		return &Model{ipvs.New(family, ipvs.Options{Kernel: kernel, Rules: rules}), kernel.Tables}
	},
	v1alpha1.ModeNFTables: func(family dataplane.Family, addresses []netip.Addr) *Model {
		kernel := nftablesmodel.New(addresses...)
		return &Model{nftables.New(family, nftables.Options{Model: kernel}), kernel}
	},
}

// NewModel returns the model of a node with these addresses, which is not programmed yet.
func NewModel(mode v1alpha1.ProxyMode, family dataplane.Family, addresses ...netip.Addr) (*Model, error) {
	if model, found := models[mode]; found {
		return model(family, addresses), nil
	}
	var names []string
	for _, d := range declarations {
		names = append(names, string(d.Mode))
	}
	last := len(names) - 1
	return nil, fmt.Errorf("unknown mode %s: choose %s or %s", mode, strings.Join(names[:last], ", "), names[last])
}
