package userspace

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// rejection is why a connection, or a UDP client, was not served.
type rejection int

const (
	// noEndpoint: none accepted, or there is none.
	noEndpoint rejection = iota
	// tooManyOfPort and tooManyOfNode: a limit is reached.
	tooManyOfPort
	tooManyOfNode
	// noDescriptor: the process has no file descriptor left. noLocalPort: the node has no port left to
	// connect to an endpoint from.
	noDescriptor
	noLocalPort
	rejections // is how many there are
)

var rejectionNames = [rejections]string{"no_endpoint", "port_limit", "node_limit", "no_descriptor", "no_local_port"}

// latencies are the bounds of the histogram, in seconds.
var latencies = [...]float64{0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2}

// counters are those of one port.
type counters struct {
	connections, retries atomic.Int64
	toEndpoint, toClient atomic.Int64 // bytes
	rejected             [rejections]atomic.Int64

	// How long it took until an endpoint accepted, by bucket; the last one has the rest.
	latency [len(latencies) + 1]atomic.Int64
	took    atomic.Int64 // in ns
}

// observe notes how long it took until an endpoint accepted, in ns.
func (c *counters) observe(took int64) {
	bucket := 0
	for bucket < len(latencies) && float64(took) > latencies[bucket]*1e9 {
		bucket++
	}
	c.latency[bucket].Add(1)
	c.took.Add(took)
}

// collector exports the counters of the ports that are used: of the others, which may be many, there is
// nothing to see.
type collector struct{ *Proxy }

const prefix = "nodeproxy_agent_userspace_"

var (
	ofPort            = []string{"namespace", "service", "port", "ip_family"}
	descOpen          = desc("open_connections", "Connections, and UDP clients, that a port of a Service has.")
	descConnections   = desc("connections_total", "Connections to a port of a Service, and UDP clients, that an endpoint has accepted.")
	descRetries       = desc("retries_total", "Attempts with another endpoint because one did not accept.")
	descBytes         = desc("bytes_total", "Bytes transferred, by direction (to_endpoint, to_client).", "direction")
	descRejected      = desc("rejected_total", "Connections, and UDP clients, that were not served, by reason (no_endpoint, port_limit, node_limit, no_descriptor, no_local_port).", "reason")
	descFailures      = desc("endpoint_failures_total", "Attempts that an endpoint did not accept.", "endpoint")
	descLatency       = desc("connect_duration_seconds", "Time from a connection to a port of a Service until an endpoint has accepted it.")
	descNotRedirected = prometheus.NewDesc(prefix+"not_redirected_total", "Connections that came to the proxy without being redirected from a Service.", nil, nil)
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, append(append([]string{}, ofPort...), labels...), nil)
}

// Describe implements prometheus.Collector.
func (collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descOpen, descConnections, descRetries, descBytes, descRejected, descFailures, descLatency, descNotRedirected} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, float64(value), labels...) //nolint:promlinter // a test checks the names
	}
	send(descNotRedirected, prometheus.CounterValue, c.notRedirected.Load())
	for _, p := range c.table.all() {
		if !p.used.Load() {
			continue
		}
		of := []string{p.id.service.Namespace, p.id.service.Name, p.id.text(), string(p.id.family)}
		with := func(label string) []string { return append(append([]string{}, of...), label) }
		send(descOpen, prometheus.GaugeValue, p.open.n.Load(), of...)
		send(descConnections, prometheus.CounterValue, p.connections.Load(), of...)
		send(descRetries, prometheus.CounterValue, p.retries.Load(), of...)
		send(descBytes, prometheus.CounterValue, p.toEndpoint.Load(), with("to_endpoint")...)
		send(descBytes, prometheus.CounterValue, p.toClient.Load(), with("to_client")...)
		for r := range p.rejected {
			send(descRejected, prometheus.CounterValue, p.rejected[r].Load(), with(rejectionNames[r])...)
		}
		for address, n := range p.failuresByEndpoint() {
			send(descFailures, prometheus.CounterValue, n, with(address)...)
		}
		count, buckets := uint64(0), map[float64]uint64{}
		for i := range p.latency {
			count += uint64(p.latency[i].Load()) //nolint:gosec // not negative
			if i < len(latencies) {
				buckets[latencies[i]] = count
			}
		}
		to <- prometheus.MustNewConstHistogram(descLatency, count, float64(p.took.Load())/1e9, buckets, of...)
	}
}

// failuresByEndpoint returns those of endpoints that have failed.
func (b *balancer) failuresByEndpoint() map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]int64{}
	for address, e := range b.known {
		if n := e.failed.Load(); n > 0 {
			out[address.String()] = n
		}
	}
	return out
}
