package conntrack

import (
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// nodePortsAnswer returns which addresses NodePorts answer on: those of the
// node's own that the settings choose. local are the addresses of its
// interfaces.
func nodePortsAnswer(family dataplane.Family, node *dataplane.Node, local []netip.Addr) (func(netip.Addr) bool, error) {
	nodePorts, err := dataplane.NodePortsOf(family, node)
	if err != nil {
		return nil, err
	}
	own := make(map[netip.Addr]struct{}, len(local))
	for _, a := range local {
		own[a] = struct{}{}
	}
	return func(a netip.Addr) bool {
		// All of 127.0.0.0/8 is local, but with ranges there is a rule for each
		// address of an interface only.
		_, found := own[a]
		return (found || a.IsLoopback() && len(nodePorts.Ranges) == 0) && nodePorts.AnswerOn(a)
	}, nil
}
