package nodes

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

// TestHealthAnswersAreThoseOfKubeProxy asks the real kube-proxy and then the
// agent on the same node the same questions, and compares the answers byte by
// byte but for times.
func TestHealthAnswersAreThoseOfKubeProxy(t *testing.T) {
	t.Parallel()
	e := start(t)
	for _, pod := range []cluster.PodSpec{
		{Name: "web-1", Labels: map[string]string{"app": "web"}}, {Name: "web-2", Labels: map[string]string{"app": "web"}},
		{Name: "web-3", Labels: map[string]string{"app": "web"}, Unready: true},
	} {
		if _, err := e.node.RunPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	served, empty := e.balanced("served", "web"), e.balanced("empty", "none")
	kubeProxy := e.startKubeProxy()
	want := e.healthAnswers(served, empty)
	if err := kubeProxy.Stop(); err != nil {
		t.Fatal(err)
	}
	agent := e.startAgent()
	e.programmed()
	got := e.healthAnswers(served, empty)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-kube-proxy +agent):\n%s", diff)
	}
	// Ports do not stay open without the agent, and one that another program holds
	// is named.
	if err := agent.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"http://" + e.node.AddressPort(served) + "/", "http://" + e.node.AddressPort(10256) + "/healthz"} {
		if answer, err := e.ask(t.Context(), http.MethodGet, url); err == nil {
			t.Errorf("%s after the end: %s", url, answer)
		}
	}
	holder, err := e.node.Start(cluster.Command{Path: "/usr/bin/env", Args: []string{"perl", "-MSocket", "-e",
		fmt.Sprintf(`socket(S, AF_INET, SOCK_STREAM, 0); setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1); bind(S, sockaddr_in(%d, INADDR_ANY)) or die; listen(S, 1); sleep 3600`, empty)}})
	if err != nil {
		t.Fatal(err)
	}
	e.until(func(ctx context.Context) error {
		conn, err := e.nodeproxy.Cluster.Outside().Connect(ctx, "tcp", e.node.AddressPort(empty))
		if err != nil {
			return fmt.Errorf("%w; %s", err, holder.Tail())
		}
		return conn.Close()
	})
	e.startAgent()
	e.expect("Programmed", metav1.ConditionTrue, "Programmed", fmt.Sprintf("health-check node port %d of Service default/empty", empty))
	e.until(e.answers(http.MethodGet, "http://"+e.node.AddressPort(served)+"/", 200, nil))
	if err := holder.Kill(); err != nil {
		t.Fatal(err)
	}
	e.until(e.answers(http.MethodGet, "http://"+e.node.AddressPort(empty)+"/", 503, nil))
}

// balanced makes a Service of a load balancer and returns its health-check node
// port.
func (e *env) balanced(name, app string) int {
	e.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Selector: map[string]string{"app": app}, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Ports: []corev1.ServicePort{
				{Name: "a", Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "b", Port: 81, TargetPort: intstr.FromInt32(8080)}, // each pod behind two ports
			},
		},
	}
	if err := e.nodeproxy.Cluster.Client().Create(e.Context(), service); err != nil {
		e.Fatal(err)
	}
	return int(service.Spec.HealthCheckNodePort)
}

func (e *env) startKubeProxy() *cluster.Process {
	e.Helper()
	directory, err := binaries.Ensure(e.Context(), os.Stderr, binaries.KubeProxy)
	if err != nil {
		e.Fatal(err)
	}
	kubeconfig, err := e.nodeproxy.Cluster.KubeconfigFor("kube-proxy", "system:kube-proxy")
	if err != nil {
		e.Fatal(err)
	}
	process, err := e.node.Start(cluster.Command{Path: filepath.Join(directory, "kube-proxy"), Args: []string{
		"--kubeconfig", kubeconfig, "--hostname-override", e.node.Name(), "--proxy-mode", "iptables",
		"--cluster-cidr", cluster.PodRanges, "--conntrack-max-per-core", "0",
	}})
	if err != nil {
		e.Fatal(err)
	}
	return process
}

// healthAnswers asks all there is to ask, of a node that is in use, and one that
// is drained.
func (e *env) healthAnswers(served, empty int) map[string]string {
	e.Helper()
	got := map[string]string{}
	ask := func(when, method string, code int, host string, port int, path string) {
		e.Helper()
		url := "http://" + net.JoinHostPort(host, strconv.Itoa(port)) + path
		var answer string
		e.until(e.answers(method, url, code, &answer))
		got[fmt.Sprintf("%s: %s %s", when, method, url)] = answer
	}
	for _, host := range []string{e.node.Address(), e.node.Address6()} {
		ask("in use", http.MethodGet, 200, host, served, "/")
		ask("in use", http.MethodPost, 200, host, served, "/some/path?and=more")
		ask("in use", http.MethodHead, 200, host, served, "/healthz")
		ask("in use", http.MethodGet, 503, host, empty, "/")
	}
	for _, path := range []string{"/healthz", "/livez"} {
		ask("in use", http.MethodGet, 200, e.node.Address(), 10256, path)
	}
	e.taint(corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule})
	ask("drained", http.MethodGet, 503, e.node.Address(), 10256, "/healthz")
	ask("drained", http.MethodGet, 200, e.node.Address(), 10256, "/livez")
	ask("drained", http.MethodGet, 200, e.node.Address(), served, "/")
	e.taint(corev1.Taint{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule})
	ask("another taint", http.MethodGet, 200, e.node.Address(), 10256, "/healthz")
	e.taint()
	return got
}

func (e *env) taint(taints ...corev1.Taint) {
	e.Helper()
	node := &corev1.Node{}
	api := e.nodeproxy.Cluster.Client()
	if err := api.Get(e.Context(), client.ObjectKey{Name: e.node.Name()}, node); err != nil {
		e.Fatal(err)
	}
	before := client.MergeFrom(node.DeepCopy())
	node.Spec.Taints = taints
	if err := api.Patch(e.Context(), node, before); err != nil {
		e.Fatal(err)
	}
}

// answers wants a status, and two answers in a row that are the same but for
// times: counts may still come.
func (e *env) answers(method, url string, code int, answer *string) func(context.Context) error {
	last := ""
	return func(ctx context.Context) error {
		got, err := e.ask(ctx, method, url)
		if err != nil {
			return err
		}
		before := last
		last = got
		if !strings.HasPrefix(got, fmt.Sprintf("%d ", code)) || got != before {
			return fmt.Errorf("%s %s: %s; want %d", method, url, got, code)
		}
		if answer != nil {
			*answer = got
		}
		return nil
	}
}

var times = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)`)

// ask returns status, headers and body of an answer, without times.
func (e *env) ask(ctx context.Context, method, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := e.nodeproxy.Cluster.Outside().Transport().RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	text := times.ReplaceAllString(string(body), "TIME")
	if strings.Contains(text, "TIME") {
		response.Header.Del("Content-Length") // as long as the times are
	}
	response.Header.Del("Date")
	response.Header.Del("Nodeproxy-Agent") // the one intended difference: it identifies the agent
	return fmt.Sprintf("%s %v %s", response.Status, response.Header, text), nil
}
