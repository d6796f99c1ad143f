package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
)

// A cluster in files: what users write, and what kubectl get prints.
const (
	writtenFile = `
apiVersion: nodeproxy.io/v1alpha1
kind: NodeProxy
metadata: {name: cluster}
spec: {}
---
apiVersion: nodeproxy.io/v1alpha1
kind: NodeProxyPolicy
metadata: {name: edge}
spec: {nodeSelector: {matchLabels: {pool: edge}}, settings: {ipvs: {scheduler: lc}}}
`
	servicePolicyFile = `
apiVersion: nodeproxy.io/v1alpha1
kind: ServiceProxyPolicy
metadata: {name: closed}
spec: {namespaceSelector: {}, serviceSelector: {}, overrides: {nodePorts: Disabled}}
`
	snapshotFile = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {pool: edge}}}
- {apiVersion: v1, kind: Node, metadata: {name: n2}}
- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}
- {apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {type: NodePort, clusterIP: 10.96.0.1, ports: [{port: 80, nodePort: 30080}]}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: cart, namespace: shop}}
`
)

// outcomeOf runs the subcommand with what is on the standard input.
func outcomeOf(t *testing.T, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, err strings.Builder
	status = runRender(t.Context(), args, streams{in: strings.NewReader(stdin), out: &out, err: &err}, logr.Discard())
	return status, out.String(), err.String()
}

func TestRenderFiles(t *testing.T) {
	directory := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, text)
		return path
	}
	repository, policy, snapshot := filepath.Dir(file("repository/nodeproxy.yaml", writtenFile)), file("policy.yaml", servicePolicyFile), file("snapshot.yaml", snapshotFile)
	file("repository/more/policy.yaml", servicePolicyFile)
	status, rendered, printed := outcomeOf(t, "", "-f", repository, "-f", snapshot)
	if status != exitSame || strings.Count(rendered, "\nkind: NodeProxyRules\n") != 2 || strings.Count(rendered, "\nkind: ServiceProxyRules\n") != 1 {
		t.Fatalf("exit status %d\n%s%s", status, rendered, printed)
	}
	wantReported := "note: " + filepath.Join(repository, "more") + " is not read: use --recursive to read subdirectories\n" +
		"note: ignoring 1 object that nothing is rendered from: 1 Deployment (apps/v1)\n"
	if diff := cmp.Diff(wantReported, printed); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	before := file("before.yaml", rendered)
	scheduler := file("scheduler.yaml", strings.Replace(writtenFile, "lc", "sh", 1))
	invalid := file("invalid.yaml", strings.Replace(writtenFile, "lc", "fastest", 1))
	for name, c := range map[string]struct {
		stdin          string
		args           []string
		status         int
		stdout, stderr []string // in these texts
	}{
		"nothing changes":           {args: []string{"-f", repository, "-f", snapshot, "-f", before, "--diff"}, status: exitSame, stdout: []string{"0 NodeProxyRules and 0 ServiceProxyRules would change\n"}},
		"a node policy":             {args: []string{"-f", scheduler, "-f", snapshot, "-f", before, "--diff"}, status: exitChanges, stdout: []string{"--- stored/NodeProxyRules/n1", "\n-      scheduler: lc\n+      scheduler: sh\n", "\n1 NodeProxyRules and 0 ServiceProxyRules would change\n"}},
		"a Service policy":          {args: []string{"-f", repository, "--filename", policy, "-f", snapshot, "-f", before, "--diff"}, status: exitChanges, stdout: []string{"\n-    nodePort: 30080\n", "\n0 NodeProxyRules and 1 ServiceProxyRules would change\n"}},
		"the same by its directory": {args: []string{"-f", repository, "-R", "-f", snapshot, "-f", before, "--diff"}, status: exitChanges, stdout: []string{"\n0 NodeProxyRules and 1 ServiceProxyRules would change\n"}},
		"standard input":            {stdin: servicePolicyFile, args: []string{"-f", "-", "-f", repository, "-f", snapshot, "-f", before, "--diff"}, status: exitChanges, stdout: []string{"0 NodeProxyRules and 1 ServiceProxyRules would change"}},
		"nothing is stored":         {args: []string{"-f", repository, "-f", snapshot, "--diff"}, status: exitChanges, stdout: []string{"0 NodeProxyRules and 0 ServiceProxyRules would change, 2 NodeProxyRules and 1 ServiceProxyRules would be created\n"}},
		"without --diff":            {args: []string{"-f", scheduler, "-f", snapshot, "-f", before}, status: exitSame, stdout: []string{"scheduler: sh"}},
		"denied":                    {args: []string{"-f", invalid, "-f", snapshot, "--diff"}, status: exitFailed, stderr: []string{"error: " + invalid + ", document 2 (line 7): NodeProxyPolicy edge: spec.settings.ipvs.scheduler: Invalid value"}},
		"all that is denied":        {args: []string{"-f", invalid, "-f", "-"}, stdin: "a: [", status: exitFailed, stderr: []string{"error: " + invalid + ", document 2", "\nerror: standard input, document 1 (line 1): not YAML"}},
		"no NodeProxy":              {args: []string{"-f", policy, "-f", snapshot}, status: exitFailed, stderr: []string{"note: no cluster is read: specify one with --kubeconfig", "error: there is no NodeProxy cluster"}},
		"no file":                   {args: []string{"-f", filepath.Join(directory, "none.yaml")}, status: exitFailed, stderr: []string{"none.yaml"}},
		"no cluster":                {args: []string{"--kubeconfig", filepath.Join(directory, "none")}, status: exitFailed, stderr: []string{"error: read --kubeconfig"}},
		"more than flags":           {args: []string{repository}, status: exitFailed, stderr: []string{"specify files with -f"}},
		"nothing to prune":          {args: []string{"-f", repository, "--prune"}, status: exitFailed, stderr: []string{"--prune needs files (-f) and a cluster"}},
		"nothing to prune by":       {args: []string{"--kubeconfig", "k", "--prune"}, status: exitFailed, stderr: []string{"--prune needs files (-f) and a cluster"}},
		"empty name":                {args: []string{"-f", ""}, status: exitFailed, stderr: []string{"the name is empty"}},
		"help":                      {args: []string{"--help"}, status: exitSame, stderr: []string{"Exit status: 0 rendered", "-recursive"}},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := outcomeOf(t, c.stdin, c.args...)
			if status != c.status {
				t.Errorf("exit status %d, want %d", status, c.status)
			}
			for _, text := range c.stdout {
				if !strings.Contains(stdout, text) {
					t.Errorf("%q is missing in\n%s", text, stdout)
				}
			}
			for _, text := range c.stderr {
				if !strings.Contains(stderr, text) {
					t.Errorf("%q is missing in\n%s", text, stderr)
				}
			}
			if t.Failed() {
				t.Logf("standard error: %s", stderr)
			}
		})
	}
}
