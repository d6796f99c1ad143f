package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

const assetsVariable = "KUBEBUILDER_ASSETS"

var (
	crdDirectory     = filepath.Join("..", "..", "config", "crd", "bases")
	samplesDirectory = filepath.Join("..", "..", "config", "samples")

	// server is the API server that all tests of the package share; TestMain
	// starts it before the first and stops it after the last.
	server apiServer
)

// apiServer is a running API server with the CRDs of this repository.
type apiServer struct {
	client     client.Client
	kubeconfig string
}

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(assetsVariable) == "" {
		fmt.Printf("%s is not set, so there is no API server to test with: run make test, which builds one and sets it\n", assetsVariable)
		if testing.Short() {
			os.Exit(0)
		}
		os.Exit(1)
	}
	code, err := runWithServer(m)
	if err != nil {
		fmt.Println("test/api:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func runWithServer(m *testing.M) (code int, err error) {
	env := &envtest.Environment{CRDDirectoryPaths: []string{crdDirectory}, ErrorIfCRDPathMissing: true}
	config, err := env.Start()
	if err != nil {
		return 1, errors.Join(fmt.Errorf("starting the API server of %s: %w", os.Getenv(assetsVariable), err), env.Stop())
	}
	defer func() { err = errors.Join(err, env.Stop()) }()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return 1, err
	}
	server.client, err = client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return 1, fmt.Errorf("making a client: %w", err)
	}
	directory, err := os.MkdirTemp("", "nodeproxy-test-api-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(directory)
	admin, err := env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return 1, fmt.Errorf("making a user for kubectl: %w", err)
	}
	text, err := admin.KubeConfig()
	if err != nil {
		return 1, fmt.Errorf("writing a kubeconfig: %w", err)
	}
	server.kubeconfig = filepath.Join(directory, "kubeconfig")
	if err := os.WriteFile(server.kubeconfig, text, 0o600); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// kubectl runs the real kubectl and returns what it printed, with its exit
// code.
func kubectl(t *testing.T, args ...string) (output string, exitCode int) {
	t.Helper()
	var both bytes.Buffer
	// The variable is read here and not in TestMain, because go test keys its
	// cache of results on what is read while a test runs.
	cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(assetsVariable), "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+server.kubeconfig)
	cmd.Stdout, cmd.Stderr = &both, &both
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("kubectl %v: %v", args, err)
	}
	return both.String(), cmd.ProcessState.ExitCode()
}

func newNodeProxy(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return newObject(t, "NodeProxy", name, spec)
}

// newObject parses a spec in YAML into an object that holds these fields and no
// others, as an object from kubectl does.
func newObject(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	fields, err := yaml.YAMLToJSON([]byte(spec))
	if err != nil {
		t.Fatalf("spec of the test case: %v", err)
	}
	object := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"name": %q}, "spec": %s}`,
		v1alpha1.GroupVersion, kind, name, fields)
	if err := object.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatalf("object of the test case: %v", err)
	}
	return object
}

// deleteAfter deletes an object at the end of the test, when it is still
// there.
func deleteAfter(t *testing.T, object client.Object) {
	t.Helper()
	t.Cleanup(func() {
		if err := server.client.Delete(context.Background(), object); client.IgnoreNotFound(err) != nil {
			t.Errorf("deleting %s: %v", object.GetName(), err)
		}
	})
}

// The API server is of the Kubernetes that was asked for: package binaries names its
// directory after it. Others may be given by KUBEBUILDER_ASSETS.
func TestServerVersion(t *testing.T) {
	expected, err := binaries.Directory()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(binaries.KubernetesVariable) == "" && os.Getenv(assetsVariable) != expected {
		return
	}
	out, code := kubectl(t, "version", "-o", "json")
	var versions struct{ ServerVersion struct{ GitVersion string } }
	if err := json.Unmarshal([]byte(out), &versions); err != nil || code != 0 {
		t.Fatalf("kubectl version: exit code %d, %v\n%s", code, err, out)
	}
	got := versions.ServerVersion.GitVersion
	if got == "" || !strings.HasPrefix(filepath.Base(expected), "kubernetes-"+got+"-") {
		t.Errorf("the API server is of %q, not of %s", got, filepath.Base(expected))
	}
}
