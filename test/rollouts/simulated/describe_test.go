package simulated

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// What is different at each run: what the API server makes up, times, and the counts of a
// moment.
var (
	madeUp = regexp.MustCompile(`(?m)^( *(?:UID|Resource Version):).*$`)
	// When the event was sent, the controller may have seen its own first writes or not.
	counts    = regexp.MustCompile(`(?m)^(Normal +Progressing .*: ).*(; at most )`)
	timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	gaps      = regexp.MustCompile(` {2,}`)
)

// describe compares what kubectl describe and kubectl get report of a policy with golden
// files.
func (w *world) describe(title, policy string) {
	w.t.Helper()
	out := w.plane.kubectl(w.t, "describe", "nodeproxypolicy", policy)
	out = timestamp.ReplaceAllString(madeUp.ReplaceAllString(out, "$1 (of this object)"), "(time)")
	text, events, _ := strings.Cut(out, "\nEvents:\n")
	w.golden("describe-"+title, text+"\nEvents:\n"+sorted(counts.ReplaceAllString(unaged(events), "$1(counts)$2")))
	w.golden("get-"+title, unaged(w.plane.kubectl(w.t, "get", "nodeproxypolicies")))
}

// unaged is a table without the ages in it, and with gaps that do not depend on them.
func unaged(table string) string {
	var out []string
	column := -1
	for line := range strings.Lines(table) {
		cells := gaps.Split(strings.TrimSpace(line), -1)
		if column < 0 {
			column = slices.IndexFunc(cells, func(title string) bool { return strings.EqualFold(title, "age") })
		} else if column < len(cells) && !strings.HasPrefix(cells[column], "-") {
			cells[column] = "(age)"
		}
		out = append(out, strings.Join(cells, "   "))
	}
	return strings.Join(out, "\n")
}

// sorted is a table with its rows sorted: kubectl prints events of one second in no
// order.
func sorted(table string) string {
	lines := strings.Split(table, "\n")
	const title = 2 // and dashes
	if len(lines) > title {
		slices.Sort(lines[title:])
	}
	return strings.Join(lines, "\n")
}

// golden compares with a file in testdata.
func (w *world) golden(title, got string) {
	w.t.Helper()
	var lines []string
	for line := range strings.Lines(got) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	got = strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
	file := filepath.Join("testdata", title+".txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			w.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatalf("%v: go test ./test/rollouts/simulated -update writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		w.t.Errorf("%s (-want +got); if it is meant, go test ./test/rollouts/simulated -update:\n%s", file, diff)
	}
}
