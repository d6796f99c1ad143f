package mustgather_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	namespace = "nodeproxy-system"
	hidden    = "not-for-anybody-else"
)

// server is an API server with what must-gather looks for.
type server struct {
	env    *envtest.Environment
	client client.Client
}

func startServer(t *testing.T) *server {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set, so there is no API server to test with: run make test-api, which builds one and sets it")
	}
	s := &server{env: &envtest.Environment{CRDDirectoryPaths: []string{"../../config/crd/bases"}, ErrorIfCRDPathMissing: true}}
	t.Cleanup(func() {
		if err := s.env.Stop(); err != nil {
			t.Error(err)
		}
	})
	config, err := s.env.Start()
	if err != nil {
		t.Fatal(err)
	}
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	if s.client, err = client.New(config, client.Options{Scheme: known}); err != nil {
		t.Fatal(err)
	}
	return s
}

// fill makes a NodeProxy, a node whose agent has reported and has a pod, another
// one without a pod, a controller, and a Secret.
func (s *server) fill(t *testing.T) {
	t.Helper()
	create := func(object client.Object) {
		t.Helper()
		if err := s.client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	create(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})
	for _, name := range []string{"node-a", "node-b"} {
		create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.NodeProxyRulesSpec{FormatVersion: 1, Settings: *v1alpha1.CompleteSettings(nil), Node: v1alpha1.NodeFacts{}}}
		create(rules)
		rules.Status.Difference = &v1alpha1.DifferenceReport{Count: 7, Examples: []string{"rule missing in KUBE-SERVICES"}}
		if err := s.client.Status().Update(t.Context(), rules); err != nil {
			t.Fatal(err)
		}
	}
	for name, node := range map[string]string{"nodeproxy-agent-x": "node-a", "nodeproxy-controller-x": "node-b"} {
		create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/name": strings.TrimSuffix(name, "-x")}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "agent", Image: "nodeproxy.io/nodeproxy-agent:v1"}}},
		})
	}
	create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "key"}, StringData: map[string]string{"key": hidden}})
	create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nodeproxy-api-servers"},
		Data: map[string]string{"endpoints": "https://192.0.2.1:6443"}})
	create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-another-program"}, Data: map[string]string{"key": hidden}})
}

func (s *server) kubeconfig(t *testing.T, user envtest.User) string {
	t.Helper()
	added, err := s.env.AddUser(user, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := added.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, text)
}

func writeFile(t *testing.T, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func realKubectl() string { return filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl") }

// gather runs must-gather, and returns the directory, what it printed and its error.
func gather(t *testing.T, kubeconfig string, args ...string) (directory, printed string, err error) {
	t.Helper()
	directory = filepath.Join(t.TempDir(), "gathered")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../../hack/must-gather", append([]string{"--kubectl", realKubectl(), directory}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.WaitDelay = 10 * time.Second // for what it may have left behind
	out, err := cmd.CombinedOutput()
	return directory, string(out), err
}

func TestCollectsAllThereIs(t *testing.T) {
	s := startServer(t)
	s.fill(t)
	directory, printed, err := gather(t, s.kubeconfig(t, envtest.User{Name: "admin", Groups: []string{"system:masters"}}))
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	files := read(t, os.DirFS(directory))
	for file, want := range map[string]string{
		"versions/kubernetes.yaml":    "serverVersion",
		"versions/crds.txt":           "nodeproxyrules.nodeproxy.io",
		"versions/images.txt":         "nodeproxy.io/nodeproxy-agent:v1",
		"objects/nodeproxies.yaml":    "name: cluster",
		"objects/nodeproxyrules.yaml": "name: node-b",
		"objects/services.yaml":       "name: kubernetes",
		"objects/nodes.txt":           "node-a",
		"namespace/pods.yaml":         "nodeproxy-controller-x",
		"namespace/api-servers.yaml":  "192.0.2.1",
		"desired-and-actual.txt":      "rule missing in KUBE-SERVICES",
		"could-not-be-collected.txt":  "nodes/node-a: no program can be run",
	} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s lacks %q:\n%s", file, want, files[file])
		}
	}
	for _, want := range []string{
		"as root on the node: iptables-save -c",
		"nodes/node-b: this node has no pod of an agent",
		"controllers/nodeproxy-controller-x/log.txt: kubectl logs",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("it does not state that %q could not be collected:\n%s", want, printed)
		}
	}
	for file, text := range files {
		if strings.Contains(text, hidden) {
			t.Errorf("%s contains secrets", file)
		}
	}
	if got := len(unpack(t, directory+".tar.gz")); got != len(files) {
		t.Errorf("the archive has %d files, the directory %d", got, len(files))
	}
}

// TestLooksIntoNodes: in the agent's pod, by what its image has.
func TestLooksIntoNodes(t *testing.T) {
	s := startServer(t)
	s.fill(t)
	// There is no kubelet, so this stands for one.
	kubectl := filepath.Join(t.TempDir(), "kubectl")
	script := "#!/bin/bash\nif [[ $* == *' exec '* ]]; then echo \"${*: -2}, in ${3}\"; exit; fi\nexec " + realKubectl() + ` "$@"` + "\n"
	if err := os.WriteFile(kubectl, []byte(script), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	directory, printed, err := gather(t, s.kubeconfig(t, envtest.User{Name: "admin", Groups: []string{"system:masters"}}), "--kubectl", kubectl)
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	files := read(t, os.DirFS(directory))
	for file, want := range map[string]string{
		"iptables-nft-save.txt":     "iptables-nft-save -c",
		"ip6tables-legacy-save.txt": "ip6tables-legacy-save -c",
		"virtual-servers.txt":       "/nodeproxy-agent virtual-servers",
		"ipset.txt":                 "/nodeproxy-agent ipsets",
	} {
		if got := files["nodes/node-a/"+file]; got != want+", in nodeproxy-agent-x\n" {
			t.Errorf("%s: %q, want what %s prints", file, got, want)
		}
	}
}

func TestWithoutPermissions(t *testing.T) {
	s := startServer(t)
	s.fill(t)
	directory, printed, err := gather(t, s.kubeconfig(t, envtest.User{Name: "stranger"}))
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	if !strings.Contains(printed, "objects/nodeproxyrules.yaml: kubectl get nodeproxyrules.nodeproxy.io") || !strings.Contains(printed, "forbidden") {
		t.Errorf("it does not state what is forbidden:\n%s", printed)
	}
	if files := read(t, os.DirFS(directory)); !strings.Contains(files["versions/kubernetes.yaml"], "serverVersion") {
		t.Errorf("what may be read is not there: %q", files)
	}
}

func TestWithoutAnswer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and answers nothing
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, address := range map[string]string{"silent": listener.Addr().String(), "closed": "127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := writeFile(t, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: a,
clusters: [{name: a, cluster: {server: "https://%s"}}], contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {}}]}`, address))
			directory, printed, err := gather(t, kubeconfig, "--timeout", "2")
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(printed, "the API server does not respond") {
				t.Errorf("%v\n%s", err, printed)
			}
			if _, err := os.Stat(directory); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an empty directory is left: %v", err)
			}
		})
	}
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"--timeout"}} {
		if _, printed, err := gather(t, "", args...); err == nil || !strings.Contains(printed, "see --help") {
			t.Errorf("%q: %v\n%s", args, err, printed)
		}
	}
}

// read returns the text of all files.
func read(t *testing.T, from fs.FS) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(from, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(from, path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// unpack returns the names of the files of an archive.
func unpack(t *testing.T, path string) []string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for entries := tar.NewReader(plain); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			names = append(names, header.Name)
		}
	}
}
