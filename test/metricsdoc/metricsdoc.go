package metricsdoc

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

var update = flag.Bool("update-docs", false, "write the tables of docs/metrics.md instead of comparing")

// Recorder is a Registerer that keeps what is registered.
type Recorder struct {
	collectors []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (r *Recorder) Register(c prometheus.Collector) error {
	r.collectors = append(r.collectors, c)
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r *Recorder) MustRegister(list ...prometheus.Collector) {
	r.collectors = append(r.collectors, list...)
}

// Unregister implements prometheus.Registerer.
func (r *Recorder) Unregister(prometheus.Collector) bool { return false }

// Check compares the table of a program in the file with what its recorder has.
// Metrics of Go and of the process are left out. With -update-docs it writes
// the table.
func Check(t *testing.T, file, program string, r *Recorder) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := fmt.Sprintf("<!-- %s: begin -->\n", program), fmt.Sprintf("<!-- %s: end -->", program)
	before, rest, ok1 := strings.Cut(string(content), begin)
	documented, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s lacks %q or %q", file, begin, end)
	}
	table := r.table(t)
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+table+end+after), 0o644); err != nil { //nolint:gosec // a page
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(documented, "\n"), strings.Split(table, "\n")); diff != "" {
		t.Errorf("%s and the code differ; correct the code, or run this test with -update-docs (-docs +code):\n%s", file, diff)
	}
}

// table is one line for each metric, sorted by name.
func (r *Recorder) table(t *testing.T) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	var names []string // as registered
	counters := map[string]*dto.MetricFamily{}
	for _, c := range r.collectors {
		described := describe(t, c)
		if len(described) == 0 {
			continue
		}
		fill(c, described[0])
		registry.MustRegister(c)
		for _, d := range described {
			if strings.HasSuffix(d.GetName(), "_total") {
				counters[d.GetName()] = d
			}
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		names = append(names, row(t, f))
		delete(counters, f.GetName())
	}
	for _, f := range counters { // of collectors that only have series of what has happened
		names = append(names, row(t, f))
	}
	slices.Sort(names)
	return "| name | type | labels | unit | meaning |\n| --- | --- | --- | --- | --- |\n" + strings.Join(names, "")
}

var description = regexp.MustCompile(`^Desc{fqName: "([^"]*)", help: "(.*)", constLabels: {}, variableLabels: {([^}]*)}}$`)

// describe returns the metrics of a collector as counters, none if it is not one of the program's own.
func describe(t *testing.T, c prometheus.Collector) (out []*dto.MetricFamily) {
	t.Helper()
	descs := make(chan *prometheus.Desc, 1000)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("a description that cannot be read: %s", d)
		}
		if strings.HasPrefix(m[1], "go_") || strings.HasPrefix(m[1], "process_") {
			return nil
		}
		metric := &dto.Metric{}
		for label := range strings.FieldsFuncSeq(m[3], func(r rune) bool { return r == ',' }) {
			metric.Label = append(metric.Label, &dto.LabelPair{Name: &label})
		}
		slices.SortFunc(metric.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
		out = append(out, &dto.MetricFamily{Name: &m[1], Help: &m[2], Type: dto.MetricType_COUNTER.Enum(), Metric: []*dto.Metric{metric}})
	}
	return out
}

// fill gives a vector a first series: without one it gathers nothing.
func fill(c prometheus.Collector, described *dto.MetricFamily) {
	values := make([]string, len(described.Metric[0].Label))
	if len(values) == 0 {
		return
	}
	switch vec := c.(type) {
	case *prometheus.CounterVec:
		vec.WithLabelValues(values...)
	case *prometheus.GaugeVec:
		vec.WithLabelValues(values...)
	case *prometheus.HistogramVec:
		vec.WithLabelValues(values...)
	}
}

func row(t *testing.T, f *dto.MetricFamily) string {
	t.Helper()
	var labels []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		labels = append(labels, "`"+l.GetName()+"`")
	}
	help := f.GetHelp()
	if help == "" || !strings.HasSuffix(help, ".") || strings.ContainsAny(help, "|\n") {
		t.Errorf("%s: help %q is no sentence that fits a table", f.GetName(), help)
	}
	return fmt.Sprintf("| %#q | %s | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()),
		strings.Join(labels, ", "), unit(f.GetName()), help)
}

// unit is that in a metric's name.
func unit(name string) string {
	name = strings.TrimSuffix(name, "_total")
	switch {
	case strings.HasSuffix(name, "_timestamp_seconds"):
		return "Unix time, seconds"
	case strings.HasSuffix(name, "_seconds"):
		return "seconds"
	case strings.HasSuffix(name, "_bytes"):
		return "bytes"
	default:
		return ""
	}
}
