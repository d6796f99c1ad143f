package scenarios

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nftablesmodel"
)

// newNFTablesWorld is newWorld in mode NFTables.
func newNFTablesWorld(t *testing.T, family dataplane.Family) *world {
	addresses := addresses4
	if family == dataplane.IPv6 {
		addresses = addresses6
	}
	k := nftablesmodel.New(addresses...)
	return &world{nft: k, World: New(t, family, func() dataplane.Dataplane {
		return nftables.New(family, nftables.Options{Model: k})
	})}
}

// inNFTables are the packets with which mode NFTables deals otherwise, by the reason.
var inNFTables = []difference{
	{"unused ports of a cluster IP are rejected", []otherwise{
		{6, POD, "udp/172.30.0.41:80", "REJECT"},
		{7, POD, "172.30.0.41:443", "REJECT"},
	}},
	{"only local endpoints are known to reach themselves", []otherwise{
		{13, "10.180.1.1", "172.30.0.42:80", "10.180.0.1 10.180.1.1 -M"},
	}},
	notOnLoopback,
	{"nothing is about an address that the settings leave out", []otherwise{
		{21, EXT, "192.168.1.2:3001", "PASS"},
	}},
	{"source ranges hold without endpoints too, and for the node's own processes", []otherwise{
		{23, BLK, "1.2.3.4:80", "DROP"},
		{23, POD, "1.2.3.4:80", "DROP"},
		{23, NODE, "1.2.3.4:80", "DROP"},
	}},
	{"a table cannot accept what another one drops", []otherwise{
		{89, "1.2.3.4", "192.168.0.2:30000", "PASS"},
	}},
}

// TestRowsInNFTables runs the rows of mode IPTables in mode NFTables, in both families. The
// differences are those of kube-proxy in mode nftables, but for row 8: it drops packets to an address
// of a ServiceCIDR that no Service has.
func TestRowsInNFTables(t *testing.T) { runRowsIn(t, newNFTablesWorld, inNFTables) }
