package ownership

import (
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
)

func TestServing(t *testing.T) {
	const v4, v6 = lastSync + `{ip_family="IPv4"} `, lastSync + `{ip_family="IPv6"} `
	root := agenttest.RootsSockets
	for _, tt := range []struct {
		name    string
		sockets *agenttest.Sockets
		code    int
		body    string
		by      string // another agent
		want    []dataplane.Family
	}{
		{"both", root(), 200, "# HELP x\n" + v4 + "1.7600000001e+09\n" + v6 + "1.76e+09\n", "", []dataplane.Family{"IPv4", "IPv6"}},
		{"one", root(), 200, v4 + "1.7e+09\n" + v6 + "0\n", "", []dataplane.Family{"IPv4"}},
		{"none yet", root(), 200, v4 + "0\n", "", nil},
		{"many others", root(), 200, strings.Repeat("other_metric{a=\"b\"} 1\n", 20_000) + v6 + "1\n", "", []dataplane.Family{"IPv6"}},
		{"before Kubernetes 1.31", root(), 200, lastSync + " 1.7e+09\n", "", nil},
		{"no number", root(), 200, v4 + "now\n", "", nil},
		{"an error", root(), 500, v4 + "1\n", "", nil},
		{"another agent", root(), 200, v4 + "1\n", "another", nil},
		{"a user's process", &agenttest.Sockets{Listeners: []*sockets.Listener{{UID: 1000}}}, 200, v4 + "1\n", "", nil},
		{"another process meanwhile", &agenttest.Sockets{Listeners: []*sockets.Listener{{Cookie: 1}, {Cookie: 2}}}, 200, v4 + "1\n", "", nil},
		{"a rule leads elsewhere", &agenttest.Sockets{Listeners: []*sockets.Listener{{Cookie: 1}}, Elsewhere: true}, 200, v4 + "1\n", "", nil},
		{"nothing listens", &agenttest.Sockets{Listeners: []*sockets.Listener{nil}}, 200, v4 + "1\n", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := agenttest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
				if tt.by != "" {
					w.Header().Set(InstanceHeader, tt.by)
				}
				if r.URL.Path != "/metrics" {
					tt.code = http.StatusNotFound
				}
				w.WriteHeader(tt.code)
				_, _ = w.Write([]byte(tt.body))
			})
			gone := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 1)
			got := serving(tt.sockets, logr.Discard(), at)(t.Context())
			if families := slices.Sorted(maps.Keys(got)); !slices.Equal(families, tt.want) {
				t.Errorf("got %q, want %q", families, tt.want)
			}
			if got := serving(tt.sockets, logr.Discard(), gone)(t.Context()); len(got) > 0 {
				t.Errorf("of a closed port: %v", got)
			}
		})
	}
}
