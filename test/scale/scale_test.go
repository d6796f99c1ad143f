package main

import (
	"path/filepath"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// bounds are at most five times what is typical on two cores with nothing else to do.
func bounds() map[string]float64 {
	return map[string]float64{
		"rendering from nothing":             90,
		"controller CPU per endpoint change": 50,
		"API server CPU per write":           30,
		"writes per endpoint change":         6,
		"writes for the life of a pod":       8,
		"requests throttled (429)":           0,
		"slice write to delivery, p50":       300,
	}
}

// TestAt500Nodes is make scale in a tenth of the size.
func TestAt500Nodes(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	config, err := filepath.Abs("../../config")
	if err != nil {
		t.Fatal(err)
	}
	o := options{
		nodes: 500, services: 1000, bin: t.TempDir(), config: config, sizes: []int{1, 10, 100},
		only: []string{"bytes of one change", "idle", "10 changes a second", "pods"},
	}
	if err := programs.Into(t.Context(), o.bin, programs.Controller); err != nil {
		t.Fatal(err)
	}
	results, err := measure(t.Context(), o, t.Logf)
	if results != nil {
		results.print(t.Output())
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(results.bytes) != len(o.sizes) {
		t.Errorf("%d of %d sizes were measured", len(results.bytes), len(o.sizes))
	}
	for _, row := range results.bytes {
		// Bookmarks and the status of NodeProxy add some bytes to small ones.
		if row.missing != "" || row.agent > row.goal+50 {
			t.Errorf("%d endpoints: %.0f bytes for each change, goal %.0f; %s", row.endpoints, row.agent, row.goal, row.missing)
		}
	}
	for name, bound := range bounds() {
		if value, measured := results.measurement(name); !measured || value > bound {
			t.Errorf("%s: %.3g (measured: %v), bound %.3g", name, value, measured, bound)
		}
	}
}

func TestParseWrites(t *testing.T) {
	text := `# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="nodeproxy.io",resource="serviceproxyrules",scope="resource",subresource="",verb="PUT",version="v1alpha1"} 7
apiserver_request_total{code="200",component="apiserver",dry_run="",group="nodeproxy.io",resource="nodeproxyrules",scope="resource",subresource="status",verb="PATCH",version="v1alpha1"} 2
apiserver_request_total{code="200",component="apiserver",dry_run="",group="nodeproxy.io",resource="nodeproxyrules",scope="cluster",subresource="",verb="WATCH",version="v1alpha1"} 50
apiserver_request_total{code="429",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",scope="resource",subresource="",verb="PATCH",version="v1"} 3
`
	got, err := parseWrites(text)
	if want := (writes{rendered: 9, leases: 3, throttled: 3}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := parseWrites(`apiserver_request_total{verb="PUT",group="nodeproxy.io"} x`); err == nil {
		t.Error("no error for a value that is no number")
	}
}
