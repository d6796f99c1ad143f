package manifests_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	assetsVariable = "KUBEBUILDER_ASSETS"
	// namespace is where everything of nodeproxy lives.
	namespace         = "nodeproxy-system"
	agentAccount      = "nodeproxy-agent"
	controllerAccount = "nodeproxy-controller"
	// apiServersName is the ConfigMap with the addresses of the API servers.
	apiServersName = "nodeproxy-api-servers"
)

// server is the API server that all tests of the package share, with
// config/default applied. TestMain starts it before the first test and stops it
// after the last.
var server struct {
	config     *rest.Config // of an administrator
	client     client.Client
	kubeconfig string // of the administrator, for kubectl
	auditLog   string // the file with all requests
}

// configDirectory is the directory config of this repository.
func configDirectory(parts ...string) string {
	return filepath.Join(append([]string{"..", "..", "config"}, parts...)...)
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
		fmt.Println("test/manifests:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// auditPolicy has every request written down as it is answered.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

func runWithServer(m *testing.M) (code int, err error) {
	directory, err := os.MkdirTemp("", "nodeproxy-test-manifests-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(directory)
	policy := filepath.Join(directory, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return 1, err
	}
	server.auditLog = filepath.Join(directory, "audit.log")
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Configure().
		Set("audit-policy-file", policy).Set("audit-log-path", server.auditLog)
	server.config, err = env.Start()
	if err != nil {
		return 1, errors.Join(fmt.Errorf("starting the API server of %s: %w", os.Getenv(assetsVariable), err), env.Stop())
	}
	defer func() { err = errors.Join(err, env.Stop()) }()
	server.config.QPS = -1
	ctrl.SetLogger(logr.Discard())
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		return 1, err
	}
	server.client, err = client.New(server.config, client.Options{Scheme: known})
	if err != nil {
		return 1, fmt.Errorf("making a client: %w", err)
	}
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
	if err := install(); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// install applies config/default and waits until it holds: kinds are served,
// roles and policies apply a moment after they are created.
func install() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := kubectl(ctx, "apply", "-k", configDirectory("default")); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if out, err := kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	// An object that no agent and no administrator may make, tried in vain.
	probe := &v1alpha1.ServiceProxyRules{
		ObjectMeta: metav1.ObjectMeta{Name: "probe.probe"},
		Spec:       v1alpha1.ServiceProxyRulesSpec{FormatVersion: 1, ServiceCreated: metav1.Now()},
	}
	return until(ctx, func(ctx context.Context) error {
		err := server.client.Create(ctx, probe, client.DryRunAll)
		switch {
		case err == nil:
			return errors.New("the admission policies do not apply yet")
		case strings.Contains(err.Error(), "nodeproxy-rendered-objects"):
			return nil
		default:
			return err
		}
	})
}

// until repeats f until it succeeds, and returns its last error when ctx ends
// before.
func until(ctx context.Context, f func(ctx context.Context) error) error {
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // a later one may only report that time is up
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// eventually fails the test unless f succeeds within 20 s.
func eventually(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := until(ctx, f); err != nil {
		t.Fatalf("not within 20 s: %v", err)
	}
}

// kubectl runs the real kubectl as an administrator and returns what it printed.
func kubectl(ctx context.Context, args ...string) (string, error) {
	var both bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(assetsVariable), "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+server.kubeconfig)
	cmd.Stdout, cmd.Stderr = &both, &both
	if err := cmd.Run(); err != nil {
		return both.String(), fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return both.String(), nil
}

// readManifests reads all files of config, because go test keys its cache of
// results on the files that a test reads itself, not on those of kubectl.
func readManifests(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(configDirectory(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		texts[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// create makes an object, which goes when the test ends.
func create(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
	}
	t.Cleanup(func() {
		err := server.client.Delete(context.Background(), object, client.GracePeriodSeconds(0))
		if client.IgnoreNotFound(err) != nil {
			t.Errorf("deleting %T %s: %v", object, object.GetName(), err)
		}
	})
}

// newNamespace makes a namespace with a unique name: here nothing ends
// the deletion of namespaces, so a name cannot be used twice.
func newNamespace(t *testing.T, prefix string) string {
	t.Helper()
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}
	create(t, server.client, made)
	return made.Name
}

// podOn makes a Node and a pod of nodeproxy on it, as the scheduler leaves it.
func podOn(t *testing.T, node, account string, taints ...corev1.Taint) *corev1.Pod {
	t.Helper()
	create(t, server.client, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{Taints: taints}})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: account + "-"},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account,
			Containers: []corev1.Container{{Name: "main", Image: "nodeproxy.io/" + account}},
		},
	}
	create(t, server.client, pod)
	return pod
}

// tokenOf returns the token that the kubelet mounts into a pod, or one that
// an administrator has made for a Node; without either, one that is bound to nothing.
func tokenOf(t *testing.T, account string, boundTo client.Object) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	switch boundTo := boundTo.(type) {
	case *corev1.Pod:
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: boundTo.Name, UID: boundTo.UID}
	case *corev1.Node:
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: boundTo.Name, UID: boundTo.UID}
	}
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	if err := server.client.SubResource("token").Create(t.Context(), owner, request); err != nil {
		t.Fatalf("requesting a token for %s: %v", account, err)
	}
	return request.Status.Token
}

// configWith reaches the API server with a token and nothing else.
func configWith(token string) *rest.Config {
	config := rest.AnonymousClientConfig(server.config)
	config.QPS = -1
	config.BearerToken = token
	return config
}

// clientWith returns a client that acts by a token.
func clientWith(t *testing.T, token string) client.Client {
	t.Helper()
	c, err := client.New(configWith(token), client.Options{Scheme: server.client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
