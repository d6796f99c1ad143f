package nftables

import (
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Declaration describes mode NFTables. Packets meet its table before the rules of all other modes.
func Declaration() dataplane.Declaration {
	const only = " Only in mode NFTables."
	return dataplane.Declaration{
		Mode: v1alpha1.ModeNFTables, Precedence: 5, HarmlessProbe: true, PrecedesOthers: true,
		Metrics: []dataplane.ObjectMetric{
			{Object: dataplane.Elements, Name: "nftables_elements", Help: "Elements of all sets and maps of nodeproxy's table, without clients of session affinity." + only},
		},
		Owns: dataplane.Owned{Tables: []string{TableName}},
	}
}
