package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestAgainst compares a run with the checked-in ratios.
func TestAgainst(t *testing.T) {
	earlier, err := readRatios("ratios.json")
	if err != nil {
		t.Fatal(err)
	}
	const row, services = "first full sync", 1000
	for name, c := range map[string]struct {
		change func(r *result)
		want   string
	}{
		"as before":      {func(*result) {}, ""},
		"a little worse": {func(r *result) { r.Ratios[row] *= 1.9 }, ""},
		"clearly worse":  {func(r *result) { r.Ratios[row] *= 2.1 }, "IPTables, iptables nf_tables: first full sync: the ratio is"},
		"not measured":   {func(r *result) { delete(r.Ratios, row) }, "no ratio was measured"},
		"another size":   {func(r *result) { r.Services++ }, "no earlier ratio"},
	} {
		r := &report{}
		for _, one := range earlier.Results {
			if one.Services == services && one.Mode == v1alpha1.ModeIPTables && one.Variant == string(nfTables) {
				one.Ratios = maps.Clone(one.Ratios)
				c.change(&one)
				r.Results = append(r.Results, one)
			}
		}
		err := r.against(earlier)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRatiosNameRows: a row that bench does not have would never be measured.
func TestRatiosNameRows(t *testing.T) {
	earlier, err := readRatios("ratios.json")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, row := range (&report{ChurnTime: defaultChurn.Seconds()}).rows() {
		known[row.name] = true
	}
	for i := range earlier.Results {
		for name := range earlier.Results[i].Ratios {
			if !known[name] {
				t.Errorf("%s: there is no row %q", &earlier.Results[i], name)
			}
		}
	}
}

func TestReadRatios(t *testing.T) {
	for text, want := range map[string]string{
		`{"results":[{"services":1}]}`: "has no ratios",
		`{`:                            "reading",
	} {
		path := filepath.Join(t.TempDir(), "ratios.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readRatios(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
