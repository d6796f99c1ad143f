package desired

import (
	"errors"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
)

func TestJudge(t *testing.T) {
	type said = map[dataplane.Family]error
	const four, six = dataplane.IPv4, dataplane.IPv6
	noIPVS, noIPv6, busy := agenttest.Unsupported("no ip_vs"), agenttest.Unsupported("no IPv6"), errors.New("busy")
	tests := []struct {
		name           string
		needed         [2]bool
		mode, rules    said
		lacks, unknown string
	}{
		{"both can", [2]bool{true, true}, nil, nil, "", ""},
		{"both lack the same", [2]bool{true, true}, said{four: noIPVS, six: noIPVS}, nil, "IPv4 and IPv6: no ip_vs", ""},
		{"each lacks something else", [2]bool{true, true}, said{four: noIPVS, six: agenttest.Unsupported("no xt_set")}, nil, "IPv4: no ip_vs; IPv6: no xt_set", ""},
		{"one that is not needed", [2]bool{true, false}, said{six: noIPVS}, nil, "", ""},
		{"one that mode IPTables does not serve either", [2]bool{true, true}, said{six: noIPv6}, said{six: noIPv6}, "", ""},
		{"none is needed, one can", [2]bool{}, said{six: noIPVS}, nil, "", ""},
		{"none is needed, none can", [2]bool{}, said{four: noIPVS, six: noIPVS}, nil, "IPv4 and IPv6: no ip_vs", ""},
		{"an error says nothing", [2]bool{true, true}, said{four: busy}, nil, "", "IPv4: busy"},
		{"an error beside what is missing", [2]bool{true, true}, said{four: busy, six: noIPVS}, nil, "IPv6: no ip_vs", ""},
		{"an error of one that is not needed", [2]bool{false, true}, said{four: busy}, nil, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := ModeQuestion{needed: tt.needed, Nodes: map[dataplane.Family]dataplane.Node{four: {}, six: {}}}
			v := q.Judge(tt.mode, tt.rules)
			if v.Lacks != tt.lacks || wording.OfError(v.Unknown) != tt.unknown {
				t.Errorf("lacks %q, unknown %v; want %q, %q", v.Lacks, v.Unknown, tt.lacks, tt.unknown)
			}
		})
	}
}
