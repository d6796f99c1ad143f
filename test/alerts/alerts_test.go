package alerts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	directory = "../../config/prometheus"
	docs      = "../../docs"
	runbooks  = "https://github.com/nodeproxy-io/nodeproxy/blob/main/docs/troubleshooting.md#"
)

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type prometheusRule struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func rules(t *testing.T) (prometheusRule, []rule) {
	t.Helper()
	var object prometheusRule
	if err := yaml.UnmarshalStrict([]byte(read(t, filepath.Join(directory, "rules.yaml"))), &object); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range object.Spec.Groups {
		all = append(all, g.Rules...)
	}
	if object.Kind != "PrometheusRule" || len(all) == 0 {
		t.Fatalf("a %s with %d rules", object.Kind, len(all))
	}
	return object, all
}

func TestAlertsAreComplete(t *testing.T) {
	_, all := rules(t)
	troubleshooting := read(t, filepath.Join(docs, "troubleshooting.md"))
	metrics := read(t, filepath.Join(docs, "metrics.md"))
	tests := read(t, filepath.Join(directory, "rules_test.yaml"))
	named := regexp.MustCompile(`\b(?:nodeproxy|kubeproxy)_[a-z_]+`)
	for _, r := range all {
		for _, annotation := range []string{"summary", "description", "runbook_url"} {
			if r.Annotations[annotation] == "" {
				t.Errorf("%s has no %s", r.Alert, annotation)
			}
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.For == "" {
			t.Errorf("%s: severity %q, for %q", r.Alert, r.Labels["severity"], r.For)
		}
		if want := runbooks + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %s, want %s", r.Alert, r.Annotations["runbook_url"], want)
		}
		if !strings.Contains(troubleshooting, "\n### "+r.Alert+"\n") {
			t.Errorf("%s has no runbook in docs/troubleshooting.md", r.Alert)
		}
		for _, metric := range named.FindAllString(r.Expr, -1) {
			if !strings.Contains(metrics, "| `"+metric+"` |") {
				t.Errorf("%s asks for %s, which docs/metrics.md does not list", r.Alert, metric)
			}
		}
		block := "alertname: " + r.Alert + "\n"
		if fires, silent := strings.Contains(tests, block+"    exp_alerts:\n"), strings.Contains(tests, block+"    exp_alerts: []"); !fires || !silent {
			t.Errorf("%s: a case where it fires: %v, one where it does not: %v", r.Alert, fires, silent)
		}
	}
	for _, m := range regexp.MustCompile(`\n### (Nodeproxy\w+)\n`).FindAllStringSubmatch(troubleshooting, -1) {
		if !slices.ContainsFunc(all, func(r rule) bool { return r.Alert == m[1] }) {
			t.Errorf("docs/troubleshooting.md has a runbook for %s, which is no alert", m[1])
		}
	}
}

func TestAlertsByPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Geteuid() == 0 {
			t.Fatalf("hack/install-packages.sh installs promtool: %v", err)
		}
		t.Skip("promtool is not there; it is in the package prometheus of Debian")
	}
	object, _ := rules(t)
	plain, err := yaml.Marshal(object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	for name, text := range map[string]string{"rules.yaml": string(plain), "rules_test.yaml": read(t, filepath.Join(directory, "rules_test.yaml"))} {
		if err := os.WriteFile(filepath.Join(temp, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		command := exec.Command(promtool, args...)
		command.Dir = temp
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
