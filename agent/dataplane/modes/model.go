package modes

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Model is the data plane of a mode with the model of the kernel that it programs.
type Model struct {
	dataplane.Dataplane
	Kernel *iptablesmodel.Kernel
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
