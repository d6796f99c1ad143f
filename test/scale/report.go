package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"
)

// results are what was measured.
type results struct {
	options
	endpoints    int
	bytes        []bytesRow
	measurements []measurement
}

// bytesRow is what one endpoint change costs a node that watches.
type bytesRow struct {
	endpoints        int // of the Service
	kubeProxy, agent float64
	goal             float64
	// delivered is the median from the write of the slice until the agent and kube-proxy have it.
	delivered, kubeProxyDelivered time.Duration
	missing                       string // why there is no measurement
}

// measurement is one row of the second table.
type measurement struct {
	name  string
	value float64
	unit  string
	goal  float64 // at most; 0: none
	note  string
}

func (r *results) add(f measurement) { r.measurements = append(r.measurements, f) }

// measurement returns the value of a row; false: it was not measured.
func (r *results) measurement(name string) (float64, bool) {
	for _, f := range r.measurements {
		if f.name == name {
			return f.value, true
		}
	}
	return 0, false
}

func (r *results) print(out io.Writer) {
	fmt.Fprintf(out, "\n%d nodes, %d Services, %d endpoints\n", r.nodes, r.services, r.endpoints)
	if len(r.bytes) > 0 {
		fmt.Fprint(out, "\n| endpoints of the Service | kube-proxy, bytes per change and node | nodeproxy | goal | delivered, p50 | kube-proxy, p50 |\n| --- | --- | --- | --- | --- | --- |\n")
	}
	for _, row := range r.bytes {
		if row.missing != "" {
			fmt.Fprintf(out, "| %d | %.0f | %s | %.0f | | %s |\n", row.endpoints, row.kubeProxy, row.missing, row.goal, rounded(row.kubeProxyDelivered))
			continue
		}
		fmt.Fprintf(out, "| %d | %.0f | %.0f | %.0f | %s | %s |\n", row.endpoints, row.kubeProxy, row.agent, row.goal, rounded(row.delivered), rounded(row.kubeProxyDelivered))
	}
	if len(r.measurements) > 0 {
		fmt.Fprint(out, "\n| measurement | measured | goal | |\n| --- | --- | --- | --- |\n")
	}
	for _, f := range r.measurements {
		goal := ""
		if f.goal > 0 {
			goal = fmt.Sprintf("%g %s", f.goal, f.unit)
		}
		fmt.Fprintf(out, "| %s | %.3g %s | %s | %s |\n", f.name, f.value, f.unit, goal, f.note)
	}
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// quantile returns the q-quantile of how long deliveries took, 0 of none.
func quantile(deliveries []delivery, q float64) time.Duration {
	if len(deliveries) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(deliveries), func(a, b delivery) int { return cmp.Compare(a.took, b.took) })
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].took
}
