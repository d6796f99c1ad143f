package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// measurements are what was measured of one proxy. Times are in seconds, memory in
// bytes.
type measurements struct {
	// GivenUp is after how long the first sync was given up. 0: it has ended.
	GivenUp            float64 `json:"firstSyncGivenUpAfterSeconds,omitempty"`
	FirstSync          float64 `json:"firstSyncSeconds"`
	FirstSyncWall      float64 `json:"firstSyncFromProcessStartSeconds"`
	FirstSyncCPU       float64 `json:"firstSyncCPUSeconds"`
	FirstSyncResident  uint64  `json:"residentAfterFirstSyncBytes"`
	EndpointChanged    float64 `json:"endpointChangedSeconds"`
	ServiceAdded       float64 `json:"serviceAddedSeconds"`
	ServiceRemoved     float64 `json:"serviceRemovedSeconds"`
	FirstConnectionP50 float64 `json:"firstConnectionP50Seconds"`
	FirstConnectionP99 float64 `json:"firstConnectionP99Seconds"`
	ConnectService     float64 `json:"connectToServiceSeconds"`
	ConnectDirect      float64 `json:"connectToEndpointSeconds"`
	// ConnectBare is the same from a node without a proxy.
	ConnectBare float64 `json:"connectWithoutProxySeconds"`
	// Steps are of the first connections.
	Steps stepMeasurements `json:"firstConnectionSteps"`
	// KernelMemory is by how much kernelMemory grew with the first sync.
	KernelMemory int64 `json:"kernelMemoryBytes"`
	// Connections were opened in the churn, and ConnectionsFailed of them failed.
	Connections       int     `json:"connectionsInChurn,omitempty"`
	ConnectionsFailed int     `json:"connectionsFailedInChurn"`
	ChurnCPU          float64 `json:"churnCPUSeconds"`
	ChurnReceived     float64 `json:"bytesReceivedPerChange"`
	ChurnSent         float64 `json:"bytesSentPerChange"`
	Resident          uint64  `json:"residentBytes"`
	Peak              uint64  `json:"peakResidentBytes"`
	// Controller is nodeproxy's controller, of which a cluster has one.
	Controller *controllerMeasurements `json:"controller,omitempty"`
	// Load is all that is measured in mode Userspace.
	Load *loadMeasurements `json:"load,omitempty"`
}

type controllerMeasurements struct {
	// FirstRender is from the start of the controller until all objects are
	// written. 0: they were there already.
	FirstRender float64 `json:"firstRenderSeconds,omitempty"`
	ChurnCPU    float64 `json:"churnCPUSeconds"`
	Resident    uint64  `json:"residentBytes"`
	Peak        uint64  `json:"peakResidentBytes"`
}

// result compares both proxies with one number of Services and one variant.
type result struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpointsPerService"`
	// Mode is that of both proxies.
	Mode      v1alpha1.ProxyMode `json:"mode"`
	Variant   string             `json:"iptables"`
	KubeProxy *measurements      `json:"kubeProxy,omitempty"`
	Nodeproxy *measurements      `json:"nodeproxy,omitempty"`
	// NFTables is nodeproxy in that mode, beside mode Userspace.
	NFTables *measurements `json:"nftables,omitempty"`
	// Ratios are nodeproxy/kube-proxy by row of the table.
	Ratios map[string]float64 `json:"ratios,omitempty"`
	// RatiosToNFTables are nodeproxy/NFTables.
	RatiosToNFTables map[string]float64 `json:"ratiosToNFTables,omitempty"`
	// Goals, of earlier results, are what ratios have to reach.
	Goals map[string]float64 `json:"goals,omitempty"`
}

func (r *result) set(name string, f *measurements) {
	switch name {
	case kubeProxyName:
		r.KubeProxy = f
	case kernelName:
		r.NFTables = f
	default:
		r.Nodeproxy = f
	}
}

// report is the outcome of a run.
type report struct {
	Started     time.Time `json:"started"`
	Minutes     float64   `json:"minutes"`
	CPUs        int       `json:"cpus"`
	Kernel      string    `json:"kernel"`
	LoadAverage [2]string `json:"loadAverageAtStartAndEnd"`
	ChurnTime   float64   `json:"churnSeconds"`
	ChurnPace   int       `json:"churnChangesPerSecond"`
	Connections int       `json:"churnConnectionsPerSecond"`
	Results     []result  `json:"results"`

	mode v1alpha1.ProxyMode
}

func newReport(o options) *report {
	r := &report{Started: time.Now(), CPUs: runtime.NumCPU(), ChurnTime: o.churn.Seconds(), ChurnPace: o.changes, Connections: o.connections, mode: o.mode}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		r.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	r.LoadAverage[0] = loadAverage()
	return r
}

func (r *report) end() {
	r.Minutes = time.Since(r.Started).Minutes()
	r.LoadAverage[1] = loadAverage()
	for i := range r.Results {
		one := &r.Results[i]
		one.Ratios = r.ratios(one.Nodeproxy, one.KubeProxy)
		one.RatiosToNFTables = r.ratios(one.Nodeproxy, one.NFTables)
	}
}

// ratios are ours/theirs by row of the table; nil if one of them was not measured.
func (r *report) ratios(ours, theirs *measurements) map[string]float64 {
	if ours == nil || theirs == nil {
		return nil
	}
	ratios := map[string]float64{}
	for _, row := range r.rows() {
		if their := row.value(theirs); their > 0 {
			ratios[row.name] = row.value(ours) / their
		}
	}
	return ratios
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

func (r *report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// row is a line of the table.
type row struct {
	name  string
	value func(*measurements) float64
	show  func(float64) string
}

// firstSyncRow is the only one of a proxy whose first sync was given up.
const firstSyncRow = "first full sync"

func (r *report) rows() []row {
	if r.mode == v1alpha1.ModeUserspace {
		return loadRows()
	}
	churn := seconds(r.ChurnTime).String()
	rows := []row{
		{firstSyncRow, func(f *measurements) float64 { return f.FirstSync }, showTime},
		{"process start to all rules", func(f *measurements) float64 { return f.FirstSyncWall }, showTime},
		{"CPU until then", func(f *measurements) float64 { return f.FirstSyncCPU }, showTime},
		{"one endpoint changed: sync", func(f *measurements) float64 { return f.EndpointChanged }, showTime},
		{"one Service added: sync", func(f *measurements) float64 { return f.ServiceAdded }, showTime},
		{"one Service removed: sync", func(f *measurements) float64 { return f.ServiceRemoved }, showTime},
		{"slice write to connection p50", func(f *measurements) float64 { return f.FirstConnectionP50 }, showTime},
		{"slice write to connection p99", func(f *measurements) float64 { return f.FirstConnectionP99 }, showTime},
		{"  slice written", func(f *measurements) float64 { return f.Steps.Written }, showTime},
		{"  slice received", func(f *measurements) float64 { return f.Steps.Slice }, showTime},
		{"  ServiceProxyRules received", func(f *measurements) float64 { return f.Steps.Rules }, showTime},
		{"  sync begins", func(f *measurements) float64 { return f.Steps.SyncBegins }, showTime},
		{"  sync ends", func(f *measurements) float64 { return f.Steps.SyncEnds }, showTime},
		{"connect by the Service", func(f *measurements) float64 { return f.ConnectService }, showTime},
		{"connect to the endpoint", func(f *measurements) float64 { return f.ConnectDirect }, showTime},
		{"connect without a proxy", func(f *measurements) float64 { return f.ConnectBare }, showTime},
		{"Service over endpoint", func(f *measurements) float64 { return f.ConnectService / max(f.ConnectDirect, 1e-9) }, showFactor},
		{"CPU in " + churn + " of churn", func(f *measurements) float64 { return f.ChurnCPU }, showTime},
		{"kernel memory of the rules", func(f *measurements) float64 { return float64(f.KernelMemory) }, showMemory},
		{"resident memory", func(f *measurements) float64 { return float64(f.Resident) }, showMemory},
		{"peak resident memory", func(f *measurements) float64 { return float64(f.Peak) }, showMemory},
	}
	if r.Connections > 0 {
		rows = append(rows,
			row{"connections in the churn", func(f *measurements) float64 { return float64(f.Connections) }, showCount},
			row{"  of these failed", func(f *measurements) float64 { return float64(f.ConnectionsFailed) }, showCount},
		)
	} else { // their packets use the same link
		rows = append(rows,
			row{"bytes from API server/change", func(f *measurements) float64 { return f.ChurnReceived }, showCount},
			row{"bytes to API server/change", func(f *measurements) float64 { return f.ChurnSent }, showCount},
		)
	}
	return rows
}

// cell is the text for one proxy.
func (r *row) cell(f *measurements) string {
	switch {
	case f != nil && f.GivenUp > 0 && r.name == firstSyncRow:
		return "> " + seconds(f.GivenUp).String()
	case f == nil || f.GivenUp > 0:
		return "-"
	}
	return r.show(r.value(f))
}

// print writes one table for each number of Services and variant.
func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "\n%d CPUs, Linux %s, load average %s at the start and %s at the end, %.0f minutes.\n",
		r.CPUs, r.Kernel, r.LoadAverage[0], r.LoadAverage[1], r.Minutes)
	for i := range r.Results {
		one := &r.Results[i]
		how := "iptables " + one.Variant
		if one.Mode == v1alpha1.ModeIPVS || one.Mode == v1alpha1.ModeNFTables || one.Mode == v1alpha1.ModeUserspace {
			how = string(one.Mode)
		}
		fmt.Fprintf(out, "\n%d Services x %d endpoints, %s\n", one.Services, one.Endpoints, how)
		fmt.Fprintf(out, "%-31s %12s %12s %7s", "", kubeProxyName, nodeproxyName, "ratio")
		if one.NFTables != nil {
			fmt.Fprintf(out, " %12s %7s", kernelName, "ratio")
		}
		fmt.Fprintln(out)
		for _, row := range r.rows() {
			fmt.Fprintf(out, "%-31s %12s %12s %7s", row.name, row.cell(one.KubeProxy), row.cell(one.Nodeproxy), showRatio(one.Ratios, row.name))
			if one.NFTables != nil {
				fmt.Fprintf(out, " %12s %7s", row.cell(one.NFTables), showRatio(one.RatiosToNFTables, row.name))
			}
			fmt.Fprintln(out)
		}
		if one.Nodeproxy != nil && one.Nodeproxy.Controller != nil {
			one.Nodeproxy.Controller.print(out)
		}
	}
}

func showRatio(ratios map[string]float64, name string) string {
	value, ok := ratios[name]
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.3f", value)
}

// print writes the controller's lines: one runs in a cluster, not on each node.
func (c *controllerMeasurements) print(out io.Writer) {
	line := func(name, value string) { fmt.Fprintf(out, "%-31s %12s %12s\n", name, "-", value) }
	if c.FirstRender > 0 {
		line("controller: rendering all", showTime(c.FirstRender))
	}
	line("controller: CPU in the churn", showTime(c.ChurnCPU))
	line("controller: resident memory", showMemory(float64(c.Resident)))
	line("controller: peak", showMemory(float64(c.Peak)))
}

// showTime shows 0, which no time takes, as what was not measured.
func showTime(s float64) string {
	switch {
	case s == 0:
		return "-"
	case s >= 1:
		return fmt.Sprintf("%.2f s", s)
	case s >= .001:
		return fmt.Sprintf("%.1f ms", s*1e3)
	default:
		return fmt.Sprintf("%.0f us", s*1e6)
	}
}

func showFactor(n float64) string { return fmt.Sprintf("%.2f", n) }

func showMemory(bytes float64) string { return fmt.Sprintf("%.1f MB", bytes/1e6) }

func showCount(n float64) string { return fmt.Sprintf("%.0f", n) }
