package ownership

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/go-logr/logr"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

const (
	// MetricsURL is where kube-proxy reports when it last programmed each IP family.
	MetricsURL = "http://" + ProxyModeAddress + "/metrics"
	// lastSync is the metric. kube-proxy has its label ip_family since 1.31.
	lastSync = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
	// maxMetrics limits what is read of the metrics, in bytes.
	maxMetrics = 2 << 20
)

// ServingFunc returns the IP families that another proxy has programmed since it started. None: it
// does not serve yet, or that is unknown, as for kube-proxy before 1.31 and most other proxies.
type ServingFunc func(ctx context.Context) map[dataplane.Family]bool

// NewServing returns a ServingFunc for kube-proxy. Only answers of root's processes count, as those
// of NewProbe, and none of a nodeproxy-agent: it may have programmed the rules in question.
func NewServing(of Sockets, log logr.Logger) ServingFunc {
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	return serving(of, log, netip.AddrPortFrom(v4, proxyModePort), netip.AddrPortFrom(v6, proxyModePort))
}

func serving(of Sockets, log logr.Logger, addresses ...netip.AddrPort) ServingFunc {
	p := &prober{sockets: of, log: log, logged: map[netip.AddrPort]string{}}
	return func(ctx context.Context) map[dataplane.Family]bool {
		out := map[dataplane.Family]bool{}
		for _, address := range addresses {
			f := p.probe(ctx, metricsAt(address), "")
			p.note(ctx, address, f)
			for family := range strings.FieldsSeq(f.evidence) {
				out[dataplane.Family(family)] = true
			}
		}
		return out
	}
}

// metricsAt is a port where kube-proxy reports its metrics. The evidence is the IP families that it
// has programmed, separated by blanks.
func metricsAt(address netip.AddrPort) endpoint {
	return endpoint{address: address, path: "/metrics", limit: maxMetrics, notOurs: true, read: func(code int, body []byte) string {
		if code != http.StatusOK {
			return ""
		}
		var families []string
		for line := range strings.Lines(string(body)) {
			for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
				text, found := strings.CutPrefix(strings.TrimSpace(line), lastSync+`{ip_family="`+string(family)+`"} `)
				if at, err := strconv.ParseFloat(text, 64); found && err == nil && at > 0 {
					families = append(families, string(family))
				}
			}
		}
		return strings.Join(families, " ")
	}}
}
