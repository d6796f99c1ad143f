package manifests_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// kubeconfigWith writes a kubeconfig that holds a token and nothing else.
func kubeconfigWith(t *testing.T, token string) string {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: %q, certificate-authority-data: %s}
users:
- name: test
  user: {token: %s}
contexts:
- name: test
  context: {cluster: test, user: test}
current-context: test
`, "https://"+strings.TrimPrefix(server.config.Host, "https://"), base64.StdEncoding.EncodeToString(server.config.CAData), token)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// startController builds and starts the real nodeproxy-controller with a token,
// and more flags, and returns what stops it.
func startController(t *testing.T, token string, flags ...string) (stop func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "nodeproxy-controller")
	if err := programs.Into(t.Context(), filepath.Dir(program), programs.Controller); err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	flags = append([]string{"--kubeconfig", kubeconfigWith(t, token), "--namespace", namespace,
		"--metrics-bind-address", "0", "--health-probe-bind-address", "0"}, flags...)
	cmd := exec.Command(program, flags...)
	cmd.Env = append(os.Environ(), "RELATED_IMAGE_AGENT=nodeproxy.io/nodeproxy-agent:v0.0.0-test",
		// Older API servers cannot send a list as a watch.
		"KUBE_FEATURE_WatchListClient=false")
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
		if err != nil || t.Failed() {
			t.Logf("the controller: %v\n%s", err, output.String())
		}
		if err != nil {
			t.Fail()
		}
	}
	t.Cleanup(stop)
	return stop
}

// fastClock is a clock for which time passes a hundred times as fast, for what
// the controller does after minutes.
type fastClock struct {
	clock.RealClock
	start time.Time
}

const fast = 100

func (c *fastClock) Now() time.Time                         { return c.start.Add(fast * time.Since(c.start)) }
func (c *fastClock) Since(t time.Time) time.Duration        { return c.Now().Sub(t) }
func (c *fastClock) NewTicker(d time.Duration) clock.Ticker { return c.RealClock.NewTicker(d / fast) }

// startFastController runs the same reconcilers with a fast clock.
func startFastController(t *testing.T, token string) {
	t.Helper()
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	cacheOptions, err := controllers.CacheOptions(namespace)
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(configWith(token), ctrl.Options{
		Logger: logr.Discard(), Scheme: scheme, Cache: cacheOptions, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // for a second run in this process
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	err = controllers.SetupWithManager(ctx, mgr, controllers.Options{
		Version: "v0.0.0-test", Clock: &fastClock{start: time.Now()}, Namespace: namespace, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the fast controller: %v", err)
		}
	})
}

// TestControllerUsesEachOfItsPermissions has the controller do all that it ever does,
// with the token of its service account, and compares the API server's log with
// the controller's roles: what it was denied, and what it has not used. It therefore asks
// for nothing of what --manage-cluster-objects needs, either.
func TestControllerUsesEachOfItsPermissions(t *testing.T) {
	readManifests(t)
	token := tokenOf(t, controllerAccount, nil)
	t.Cleanup(func() {
		for _, made := range []client.Object{configMap(namespace, apiServersName), leaseOf("nodeproxy-controller", "")} {
			if err := server.client.Delete(context.Background(), made); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
	})
	t.Run("what it does at once", func(t *testing.T) { doWhatIsDoneAtOnce(t, token) })
	t.Run("what it does after minutes", func(t *testing.T) { doWhatTakesMinutes(t, token) })

	used, denied := requestsOf(t, userOf(controllerAccount))
	if len(denied) > 0 {
		t.Errorf("the controller was denied\n%s", strings.Join(denied, "\n"))
	}
	unused := slices.DeleteFunc(granted(t, controllerAccount), func(line string) bool { return used[line] })
	if len(unused) > 0 {
		t.Errorf("the controller has not used these permissions: either it does not need them, or this test must have it do more\n%s", strings.Join(unused, "\n"))
	}
}

// doWhatIsDoneAtOnce runs the real program.
func doWhatIsDoneAtOnce(t *testing.T, token string) {
	ctx := t.Context()
	shop := newNamespace(t, "permissions")
	pod := podOn(t, "permissions-1", agentAccount, corev1.Taint{Key: v1alpha1.TaintAgentNotReady, Effect: corev1.TaintEffectNoSchedule})
	proxy := &v1alpha1.NodeProxy{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName},
		Spec: v1alpha1.NodeProxySpec{
			Agent:         &v1alpha1.AgentSettings{Management: new(v1alpha1.AgentManaged)},
			RemovalPolicy: new(v1alpha1.RemovalCleanup),
		},
	}
	create(t, server.client, proxy)
	policy := &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "permissions"}}
	create(t, server.client, policy)
	gone := rulesOf(t, "gone-1")
	gone.Annotations = map[string]string{v1alpha1.AnnotationNodeAbsentSince: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}
	if err := clientWith(t, token).Update(ctx, gone); err != nil {
		t.Fatal(err)
	}
	service := openService(shop)
	create(t, server.client, service)
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	if err := server.client.Status().Update(ctx, service); err != nil {
		t.Fatal(err)
	}

	servicePolicy := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "permissions"}}
	create(t, server.client, servicePolicy)

	stop := startController(t, token)
	rules := &v1alpha1.ServiceProxyRules{}
	eventually(t, func(ctx context.Context) error {
		var events eventsv1.EventList
		err := errors.Join(
			server.client.Get(ctx, client.ObjectKeyFromObject(servicePolicy), servicePolicy),
			server.client.Get(ctx, client.ObjectKey{Name: shop + ".cart"}, rules),
			server.client.Get(ctx, client.ObjectKey{Name: "permissions-1"}, &v1alpha1.NodeProxyRules{}),
			server.client.Get(ctx, client.ObjectKeyFromObject(proxy), proxy),
			server.client.Get(ctx, client.ObjectKeyFromObject(policy), policy),
			server.client.List(ctx, &events, client.InNamespace(shop)),
			isGone(ctx, gone),
		)
		switch {
		case err != nil:
			return err
		case servicePolicy.Status.ObservedGeneration == 0:
			return errors.New("ServiceProxyPolicy has no status yet")
		case proxy.Status.Inventory == nil:
			return errors.New("NodeProxy has no inventory yet")
		case policy.Status.ObservedGeneration == 0:
			return errors.New("NodeProxyPolicy has no status yet")
		case len(proxy.Finalizers) == 0:
			return errors.New("NodeProxy has no finalizer yet")
		case len(events.Items) == 0:
			return errors.New("there is no event about the Service yet")
		}
		return nil
	})
	service.Spec.Ports[0].Port = 81
	if err := server.client.Update(ctx, service); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		if err := server.client.Get(ctx, client.ObjectKeyFromObject(rules), rules); err != nil {
			return err
		}
		if len(rules.Spec.Ports) != 1 || rules.Spec.Ports[0].Port != 81 {
			return fmt.Errorf("ServiceProxyRules have the ports %+v", rules.Spec.Ports)
		}
		return nil
	})
	if err := server.client.Delete(ctx, service); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error { return isGone(ctx, rules) })
	awaitUntainted(t, "permissions-1", tokenOf(t, agentAccount, pod))
	eventually(t, func(ctx context.Context) error {
		return errors.Join(
			server.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: agentAccount}, &appsv1.DaemonSet{}),
			server.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: apiServersName}, &corev1.ConfigMap{}),
		)
	})
	removeRules(t, "permissions-1")
	if err := server.client.Delete(ctx, proxy); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error { return isGone(ctx, proxy) })
	stop()
}

// awaitUntainted runs the agent of a node until the controller has taken the
// startup taint off.
func awaitUntainted(t *testing.T, node, token string) {
	t.Helper()
	stop := startAgent(t, node, token)
	eventually(t, func(ctx context.Context) error {
		object := &corev1.Node{}
		if err := server.client.Get(ctx, client.ObjectKey{Name: node}, object); err != nil {
			return err
		}
		for _, taint := range object.Spec.Taints {
			if taint.Key == v1alpha1.TaintAgentNotReady {
				return fmt.Errorf("%s still has the taint %s", node, taint.Key)
			}
		}
		return nil
	})
	stop()
}

// removeRules reports for an agent that it has removed its node's rules.
func removeRules(t *testing.T, node string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := server.client.Get(ctx, client.ObjectKey{Name: node}, rules); err != nil {
			return err
		}
		meta.SetStatusCondition(&rules.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRemoved,
		})
		return server.client.Status().Update(ctx, rules)
	})
}

// openService is one about which the controller writes an event.
func openService(namespace string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cart"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: []string{"2001:db8::/32"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
}

// doWhatTakesMinutes lets an agent be silent, and one whose Node is gone.
func doWhatTakesMinutes(t *testing.T, token string) {
	create(t, server.client, &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})
	create(t, server.client, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "silent-1"}})
	rulesOf(t, "silent-1")
	orphan := leaseOf("agent.orphan-1", "orphan-1")
	orphan.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	create(t, server.client, orphan)
	startFastController(t, token)
	eventually(t, func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := server.client.Get(ctx, client.ObjectKey{Name: "silent-1"}, rules); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed); c == nil || c.Reason != v1alpha1.ReasonAgentNotResponding {
			return fmt.Errorf("the condition Programmed of a node without an agent is %+v", c)
		}
		return isGone(ctx, &coordinationv1.Lease{ObjectMeta: orphan.ObjectMeta})
	})
}

// isGone returns an error while an object is there.
func isGone(ctx context.Context, object client.Object) error {
	err := server.client.Get(ctx, client.ObjectKeyFromObject(object), object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%T %s is still there", object, object.GetName())
	}
	return err
}
