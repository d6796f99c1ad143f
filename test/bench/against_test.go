package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestAgainst compares a run with the checked-in ratios.
func TestAgainst(t *testing.T) {
	o, err := parse(strings.Fields("-sizes 1000 -variants nf_tables -against ratios.json"))
	if err != nil {
		t.Fatal(err)
	}
	const row = "first full sync"
	for name, c := range map[string]struct {
		change func(r *result)
		asked  size
		want   string
	}{
		"as before":             {change: func(*result) {}},
		"a little worse":        {change: func(r *result) { r.Ratios[row] *= 1.9 }},
		"clearly worse":         {change: func(r *result) { r.Ratios[row] *= 2.1 }, want: "IPTables, iptables nf_tables: first full sync: the ratio is"},
		"a row is missing":      {change: func(r *result) { delete(r.Ratios, row) }, want: "no ratio was measured"},
		"all rows are missing":  {change: func(r *result) { r.Services++ }, want: "1000 Services x 10 endpoints, IPTables, iptables nf_tables: first full sync: no ratio was measured"},
		"a size is missing":     {change: func(*result) {}, asked: size{5000, 10}, want: "5000 Services x 10 endpoints, IPTables, iptables nf_tables: first full sync: no ratio was measured"},
		"a size without ratios": {change: func(*result) {}, asked: size{7, 7}},
	} {
		r, o := &report{}, o
		o.sizes = append(slices.Clone(o.sizes), c.asked)
		for _, one := range o.earlier.Results {
			if one.Services == 1000 && one.Mode == v1alpha1.ModeIPTables && one.Variant == string(nfTables) {
				one.Ratios = maps.Clone(one.Ratios)
				c.change(&one)
				r.Results = append(r.Results, one)
			}
		}
		err := r.against(o)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o.sizes = []size{{7, 7}}
	if err := (&report{}).against(o); err == nil || !strings.Contains(err.Error(), "no earlier ratio") {
		t.Errorf("without a size that has ratios: %v", err)
	}
}

// TestGoals: a goal, unlike an earlier ratio, has to be reached. In some rows more is better.
func TestGoals(t *testing.T) {
	const memoryRow = "  with 10,000 connections"
	earlier := result{Mode: v1alpha1.ModeUserspace, Ratios: map[string]float64{connectionsRow: 4, memoryRow: .3}, Goals: map[string]float64{connectionsRow: 3, memoryRow: .5}}
	o := options{mode: v1alpha1.ModeUserspace, sizes: []size{{}}, variants: []variant{""}, earlier: &report{Results: []result{earlier}}}
	for name, c := range map[string]struct {
		ratios map[string]float64
		want   string
	}{
		"as before":             {ratios: earlier.Ratios},
		"the goals are reached": {ratios: map[string]float64{connectionsRow: 3.1, memoryRow: .49}},
		"too much memory":       {ratios: map[string]float64{connectionsRow: 4, memoryRow: .51}, want: memoryRow + ": the ratio is 0.5100, the goal is 0.5000"},
		"too few connections":   {ratios: map[string]float64{connectionsRow: 2.9, memoryRow: .3}, want: connectionsRow + ": the ratio is 2.9000, the goal is 3.0000"},
		"half as many":          {ratios: map[string]float64{connectionsRow: 1.9, memoryRow: .3}, want: "more than 2 times as bad as the earlier 4.0000"},
	} {
		r := &report{Results: []result{{Mode: v1alpha1.ModeUserspace, Ratios: c.ratios}}}
		err := r.against(o)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// benchCall finds the targets and variables that hack/test.sh gives make.
var benchCall = regexp.MustCompile(`(?m)^\s*run_program "make bench.*?" make --no-print-directory (bench .*)$`)

// TestRatiosAreMeasured: what hack/test.sh does not measure, or under another name, would never be
// compared, or always fail.
func TestRatiosAreMeasured(t *testing.T) {
	t.Chdir("../..")
	script, err := os.ReadFile("hack/test.sh")
	if err != nil {
		t.Fatal(err)
	}
	var asked []options
	for _, call := range benchCall.FindAllStringSubmatch(string(script), -1) {
		asked = append(asked, optionsOf(t, call[1]))
	}
	earlier, err := readRatios("test/bench/ratios.json")
	if err != nil {
		t.Fatal(err)
	}
	for i := range earlier.Results {
		one := &earlier.Results[i]
		by := slices.IndexFunc(asked, func(o options) bool { return o.measures(one) })
		if by < 0 {
			t.Errorf("%s: hack/test.sh does not measure it", one)
			continue
		}
		rows := newReport(asked[by]).rows()
		for name := range one.Ratios {
			if !slices.ContainsFunc(rows, func(r row) bool { return r.name == name }) {
				t.Errorf("%s: there is no row %q", one, name)
			}
		}
	}
	for _, o := range asked {
		if !slices.ContainsFunc(earlier.Results, func(r result) bool { return o.measures(&r) }) {
			t.Errorf("%s: there are no ratios", o.what())
		}
	}
}

// optionsOf returns the options with which make calls bench, in User-mode Linux for mode IPVS.
func optionsOf(t *testing.T, call string) options {
	t.Helper()
	run := func(program string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")} // without SIZES, for example
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", program, args, err, out)
		}
		return string(out)
	}
	recipe := run("make", append([]string{"--dry-run", "--no-print-directory"}, strings.Fields(call)...)...)
	_, args, found := strings.Cut(recipe, "go run ./test/bench ")
	if !found {
		t.Fatalf("make %s does not call bench: %s", call, recipe)
	}
	o, err := parse(strings.Split(strings.TrimSuffix(run("sh", "-c", `printf '%s\n' `+args), "\n"), "\n"))
	if err != nil || o.earlier == nil {
		t.Fatalf("make %s: ratios %v, %v", call, o.earlier, err)
	}
	if o.mode == v1alpha1.ModeIPVS {
		o.variants = []variant{legacy}
	}
	return o
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
