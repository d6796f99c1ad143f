package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// modeMetrics are those of the mode that runs.
type modeMetrics struct {
	runs     *prometheus.GaugeVec
	fallback prometheus.Gauge
	// What the kernel holds in mode IPVS, which has no series in another one.
	servers, reals, draining, entries *prometheus.GaugeVec
}

func newModeMetrics(r prometheus.Registerer) *modeMetrics {
	gauges := func(name, help, label string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nodeproxy_agent_" + name, Help: help}, []string{label})
		r.MustRegister(g)
		return g
	}
	const inIPVS = " Only in mode IPVS."
	m := &modeMetrics{
		runs: gauges("mode", "1 for the mode that runs (IPTables, IPVS), 0 for the others.", "mode"),
		fallback: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nodeproxy_agent_mode_fallback", Help: "1 while another mode runs than the one that is asked for, because the node cannot run that.",
		}),
		servers:  gauges("ipvs_virtual_servers", "IPVS virtual servers of nodeproxy in the kernel."+inIPVS, "ip_family"),
		reals:    gauges("ipvs_real_servers", "Real servers of all virtual servers of nodeproxy together."+inIPVS, "ip_family"),
		draining: gauges("ipvs_draining_real_servers", "Real servers that get no new connections and go once theirs have ended."+inIPVS, "ip_family"),
		entries:  gauges("ipset_entries", "Entries of all ipsets of nodeproxy."+inIPVS, "ip_family"),
	}
	r.MustRegister(m.fallback)
	return m
}

// show sets the gauges. One goroutine calls it.
func (m *modeMetrics) show(s desired.Snapshot) {
	for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS} {
		m.runs.WithLabelValues(string(mode)).Set(flag(s.Applied.Mode == mode))
	}
	m.fallback.Set(flag(s.Mode.Fallback() != ""))
	for family, f := range s.Families {
		label := string(family)
		for gauge, count := range map[*prometheus.GaugeVec]int{
			m.servers: f.Counts.VirtualServers, m.reals: f.Counts.RealServers,
			m.draining: f.Counts.Draining, m.entries: f.Counts.SetEntries,
		} {
			if f.Done && s.Applied.Mode == v1alpha1.ModeIPVS {
				gauge.WithLabelValues(label).Set(float64(count))
			} else {
				gauge.DeleteLabelValues(label)
			}
		}
	}
}
