package api_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/liveness"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

var update = flag.Bool("update", false, "write the golden files in testdata instead of comparing with them")

// reportedStatuses are the statuses that the agent builds, kept by its own
// tests.
var reportedStatuses = filepath.Join("..", "..", "agent", "status", "testdata", "status")

// reported returns a node whose agent has reported what the file contains.
func reported(t *testing.T, node, file string) *v1alpha1.NodeProxyRules {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(reportedStatuses, file+".json"))
	if err != nil {
		t.Fatal(err)
	}
	rules := &v1alpha1.NodeProxyRules{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: v1alpha1.NodeProxyRulesSpec{
			FormatVersion: 1, SettingsRevision: "7d1f0a9c", Policies: []string{"edge", "base"}, PolicySummary: "edge,base",
			Settings: *v1alpha1.CompleteSettings(nil),
			Node:     v1alpha1.NodeFacts{Addresses: []string{"192.0.2.21"}, Zone: "zone-a"},
		},
	}
	if strings.HasPrefix(file, "audit") {
		rules.Spec.Settings.Enforcement = new(v1alpha1.Audit)
	}
	if err := json.Unmarshal(text, &rules.Status); err != nil {
		t.Fatal(err)
	}
	return rules
}

// What an operator sees with kubectl in the situations that matter.
func TestWhatKubectlPrints(t *testing.T) {
	nodes := map[string]bool{}
	create := func(rules *v1alpha1.NodeProxyRules) {
		t.Helper()
		status := rules.Status
		if err := server.client.Create(t.Context(), rules); err != nil {
			t.Fatal(err)
		}
		deleteAfter(t, rules)
		rules.Status = status
		if err := server.client.Status().Update(t.Context(), rules); err != nil {
			t.Fatal(err)
		}
		nodes[rules.Name] = true
	}
	for _, title := range []string{"all-well", "service-rejected", "other-proxy", "audit-differs", "endpoint-fails", "objects-retained"} {
		create(reported(t, title, title))
	}
	// Clouds' names are the longest.
	dead := reported(t, "ip-10-0-12-34.eu-central-1.compute.internal", "all-well")
	dead.Generation = 1 // as it will be stored
	renewed := time.Date(2026, 11, 20, 8, 59, 30, 0, time.UTC)
	condition := liveness.SilentCondition(dead, "nodeproxy-system", renewed)
	condition.LastTransitionTime = metav1.NewTime(renewed.Add(90 * time.Second))
	meta.SetStatusCondition(&dead.Status.Conditions, condition)
	create(dead)

	for title, args := range map[string][]string{
		"get":      {"get", "nodeproxyrules"},
		"get-wide": {"get", "nodeproxyrules", "-o", "wide"},
	} {
		t.Run(title, func(t *testing.T) {
			out, code := kubectl(t, args...)
			if code != 0 {
				t.Fatalf("kubectl %v: exit code %d\n%s", args, code, out)
			}
			golden(t, title, withoutAges(out))
			header, _, _ := strings.Cut(out, "\n")
			if title == "get" && len(header) > 120 {
				t.Errorf("the table is %d characters wide, more than 120:\n%s", len(header), out)
			}
		})
	}
	for name := range nodes {
		t.Run("describe "+name, func(t *testing.T) {
			out, code := kubectl(t, "describe", "nodeproxyrules", name)
			if code != 0 {
				t.Fatalf("kubectl describe: exit code %d\n%s", code, out)
			}
			golden(t, "describe-"+name, unique.ReplaceAllString(out, "$1 (of this object)"))
		})
	}
}

// TestWhatKubectlPrintsOfAll: one category lists every kind, NodeProxy shows the reason of
// Ready, and rendered objects the names of policies.
func TestWhatKubectlPrintsOfAll(t *testing.T) {
	np := newNodeProxy(t, v1alpha1.NodeProxyName, `{}`)
	objects := []client.Object{
		np,
		newObject(t, "NodeProxyPolicy", "edge", nodePolicy("")),
		newObject(t, "ServiceProxyPolicy", "open", servicePolicy("{}")),
		newObject(t, "NodeProxyRules", "work-7", `{formatVersion: 1, settings: {}, node: {draining: false}, policies: [edge, base], policySummary: "edge,base"}`),
		newObject(t, "ServiceProxyRules", "shop.cart", `{formatVersion: 1, clusterIPs: [10.96.0.9], portSummary: 80/TCP, endpointCount: 3, policies: [open, base], policySummary: "open,base"}`),
	}
	for _, o := range objects {
		if err := server.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		deleteAfter(t, o)
	}
	golden(t, "get-new-nodeproxy", withoutAges(mustKubectl(t, "get", "nodeproxy")))
	status := &v1alpha1.NodeProxy{}
	if err := server.client.Get(t.Context(), client.ObjectKeyFromObject(np), status); err != nil {
		t.Fatal(err)
	}
	status.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNodesNotProgrammed, LastTransitionTime: metav1.Now(),
	}}
	status.Status.Nodes = v1alpha1.NodeCounts{Total: 3, Programmed: 2, Stale: 1}
	status.Status.Inventory = &v1alpha1.Inventory{Services: 412, Hash: "00000000000000ab"}
	status.Status.Version = "v0.1.0"
	if err := server.client.Status().Update(t.Context(), status); err != nil {
		t.Fatal(err)
	}
	golden(t, "get-nodeproxy", withoutAges(mustKubectl(t, "get", "nodeproxy")))
	golden(t, "get-serviceproxyrules", withoutAges(mustKubectl(t, "get", "spr")))
	golden(t, "get-nodeproxy-all", mustKubectl(t, "get", "nodeproxy-all", "-o", "name"))
}

func mustKubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, code := kubectl(t, args...)
	if code != 0 {
		t.Fatalf("kubectl %v: exit code %d\n%s", args, code, out)
	}
	return out
}

// unique is what is different at each run.
var unique = regexp.MustCompile(`(?m)^( *(?:UID|Resource Version|Creation Timestamp):).*$`)

// withoutAges prints a table with ages replaced, in columns as wide as is
// needed without them.
func withoutAges(table string) string {
	lines := strings.Split(strings.TrimRight(table, "\n"), "\n")
	starts := columnStarts(lines[0])
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	var titles []string
	for _, line := range lines {
		var cells []string
		for i, start := range starts {
			end := len(line)
			if i+1 < len(starts) {
				end = min(end, starts[i+1])
			}
			cells = append(cells, strings.TrimSpace(line[min(start, end):end]))
		}
		if titles == nil {
			titles = slices.Clone(cells)
		} else {
			for i, title := range titles {
				if (title == "AGE" || title == "LAST-SYNC") && cells[i] != "" && cells[i] != "<none>" {
					cells[i] = "(age)"
				}
			}
		}
		_, _ = w.Write([]byte(strings.Join(cells, "\t") + "\n")) // to memory
	}
	_ = w.Flush() // to memory
	return out.String()
}

// columnStarts returns where the titles of a table begin. No title has a space.
func columnStarts(header string) []int {
	var starts []int
	for i := range header {
		if header[i] != ' ' && (i == 0 || header[i-1] == ' ') {
			starts = append(starts, i)
		}
	}
	return starts
}

// golden compares with a file in testdata.
func golden(t *testing.T, title, got string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(got) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	got = strings.Join(lines, "\n") + "\n"
	file := filepath.Join("testdata", "kubectl", title+".txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: go test ./test/api -run TestWhatKubectlPrints -update writes it", err)
	}
	expected := string(want)
	if os.Getenv(binaries.KubernetesVariable) != "" {
		// Each kubectl has its own idea of where a word ends.
		expected, got = strings.ReplaceAll(expected, " ", ""), strings.ReplaceAll(got, " ", "")
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("%s (-want +got); if it is meant, go test ./test/api -run TestWhatKubectlPrints -update:\n%s", file, diff)
	}
}
