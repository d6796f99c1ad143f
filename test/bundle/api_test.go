package bundle

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/apiserver"
)

// olmVariable names the file with OLM's CRD of ClusterServiceVersions. It is not
// in this repository: the project operator-framework/api has it in its directory crds.
const olmVariable = "OLM_CRD"

// startServer starts an API server, with CRDs, and returns what runs kubectl.
func startServer(t *testing.T, crds ...string) func(args ...string) (string, error) {
	t.Helper()
	server := apiserver.Start(t, crds...)
	return func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), server.Kubectl, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+server.Kubeconfig)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// What stands beside the ClusterServiceVersion is taken by an API server as it is.
func TestManifestsAreTaken(t *testing.T) {
	kubectl := startServer(t)
	args := []string{"apply", "--dry-run=server", "--validate=strict", "--namespace=default"}
	for name, o := range parse(t, *directory).Objects {
		if o.GetKind() != kindCSV {
			args = append(args, "--filename="+filepath.Join(*directory, name))
		}
	}
	if out, err := kubectl(args...); err != nil || strings.Contains(out, "Warning") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The ClusterServiceVersion is one by OLM's own schema.
func TestClusterServiceVersionIsTaken(t *testing.T) {
	if os.Getenv(olmVariable) == "" {
		t.Skipf("%s is not set: it names a file with the CRD of ClusterServiceVersions, crds/operators.coreos.com_clusterserviceversions.yaml of github.com/operator-framework/api", olmVariable)
	}
	kubectl := startServer(t, os.Getenv(olmVariable))
	dryRun := func(file string) (string, error) {
		return kubectl("apply", "--dry-run=server", "--validate=strict", "--namespace=default", "--filename="+file)
	}
	file := filepath.Join(*directory, csvFile)
	if out, err := dryRun(file); err != nil || strings.Contains(out, "Warning") {
		t.Errorf("%v\n%s", err, out)
	}

	// The same with a mistake is not.
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, edit := range map[string][2]string{
		"unknown field": {"  minKubeVersion:", "  minKubernetesVersion:"},
		"missing field": {"  displayName: nodeproxy\n", ""},
		"other type":    {"supported: true", "supported: maybe"},
		"pod template":  {"hostNetwork: true", "hostNet: true"},
	} {
		wrong := filepath.Join(t.TempDir(), "wrong.yaml")
		if err := os.WriteFile(wrong, bytes.Replace(text, []byte(edit[0]), []byte(edit[1]), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := dryRun(wrong); err == nil {
			t.Errorf("%s: it was taken\n%s", what, out)
		}
	}
}
