package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// rig is an API server, and controllers as processes.
type rig struct {
	*testing.T
	api        client.Client
	program    string
	kubeconfig string
	services   int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		const missing = "KUBEBUILDER_ASSETS is not set, so there is no API server to test against: `make test` builds one and sets it"
		if testing.Short() {
			t.Skip(missing)
		}
		t.Fatal(missing)
	}
	r := &rig{T: t, program: filepath.Join(t.TempDir(), "nodeproxy-controller")}
	if err := programs.Into(t.Context(), filepath.Dir(r.program), programs.Controller); err != nil {
		t.Fatal(err)
	}
	server := &envtest.Environment{CRDDirectoryPaths: []string{filepath.Join("..", "..", "config", "crd", "bases")}, ErrorIfCRDPathMissing: true}
	config, err := server.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	r.kubeconfig = writeKubeconfig(t, config)
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	if r.api, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	r.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "nodeproxy-system"}})
	r.create(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})
	return r
}

func writeKubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	out := clientcmdapi.NewConfig()
	out.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	out.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	out.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	out.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*out, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func (r *rig) create(o client.Object) {
	r.Helper()
	if err := r.api.Create(r.Context(), o); err != nil {
		r.Fatal(err)
	}
}

// controller is one process.
type controller struct {
	*exec.Cmd
	done    chan struct{}
	log     string // file
	metrics string // address
}

// start starts a controller, with more flags than it needs.
func (r *rig) start(flags ...string) *controller {
	r.Helper()
	c := &controller{done: make(chan struct{}), log: filepath.Join(r.TempDir(), "log"), metrics: freeAddress(r.T)}
	file, err := os.Create(c.log)
	if err != nil {
		r.Fatal(err)
	}
	flags = append([]string{"--kubeconfig", r.kubeconfig, "--metrics-bind-address=" + c.metrics, "--health-probe-bind-address=0", "-v=2"}, flags...)
	c.Cmd = exec.Command(r.program, flags...)
	c.Stdout, c.Stderr = file, file
	if err := c.Start(); err != nil {
		r.Fatal(err)
	}
	go func() {
		defer close(c.done)
		_ = c.Wait() // how it ends does not matter
		_ = file.Close()
	}()
	r.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		<-c.done
		if r.Failed() {
			text, _ := os.ReadFile(c.log)
			r.Logf("log of %d:\n%s", c.Process.Pid, text[max(0, len(text)-6000):])
		}
	})
	return c
}

// freeAddress returns an unused loopback address.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // only its number is needed
	return listener.Addr().String()
}

// serves waits until a controller's metrics hold these lines or beginnings of
// lines.
func (r *rig) serves(c *controller, lines ...string) {
	r.Helper()
	r.until("metrics", 10*time.Second, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.metrics+"/metrics", http.NoBody)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }() // only read from
		text, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		for _, line := range lines {
			if !bytes.Contains(text, []byte("\n"+line)) {
				return fmt.Errorf("no line begins with %q", line)
			}
		}
		return nil
	})
}

// signal sends a signal.
func (r *rig) signal(c *controller, s syscall.Signal) {
	r.Helper()
	if err := c.Process.Signal(s); err != nil {
		r.Fatal(err)
	}
}

// isStopped returns nil when every thread of a process is stopped: on a busy
// machine that takes longer than sending the signal.
func isStopped(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	if len(threads) == 0 {
		return fmt.Errorf("there is no process %d", pid)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			return err
		}
		// The name, in brackets, may hold anything; the state follows it.
		if state := text[bytes.LastIndexByte(text, ')')+1:]; !bytes.HasPrefix(state, []byte(" T")) {
			return fmt.Errorf("%s: %s", thread, bytes.TrimSpace(state))
		}
	}
	return nil
}

// lease is who holds the lease, and how often that has changed.
func (r *rig) lease() (holder string, transitions int32) {
	var lease coordinationv1.Lease
	err := r.api.Get(r.Context(), client.ObjectKey{Namespace: "nodeproxy-system", Name: leaseName}, &lease)
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", 0
	}
	return *lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions
}

// until waits for what, for as long as limit, and returns how long that took.
func (r *rig) until(what string, limit time.Duration, f func(ctx context.Context) error) time.Duration {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	start := time.Now()
	for {
		err := f(ctx)
		if err == nil {
			return time.Since(start)
		}
		select {
		case <-ctx.Done():
			r.Fatalf("%s: not within %s: %v", what, limit, err)
		case <-ticker.C:
		}
	}
}

// works makes a Service and returns how long it takes until its rules exist.
func (r *rig) works(what string, limit time.Duration) time.Duration {
	r.Helper()
	r.services++
	name := fmt.Sprintf("s%d", r.services)
	r.create(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	})
	took := r.until(what, limit, func(ctx context.Context) error {
		return r.api.Get(ctx, client.ObjectKey{Name: "default." + name}, &v1alpha1.ServiceProxyRules{})
	})
	r.Logf("%-52s %6.2f s, allowed %s", what, took.Seconds(), limit)
	return took
}

// held waits until another than former holds the lease.
func (r *rig) held(former string, limit time.Duration) (holder string) {
	r.Helper()
	r.until("another holder of the lease than "+former, limit, func(context.Context) error {
		if holder, _ = r.lease(); holder == "" || holder == former {
			return fmt.Errorf("held by %q", holder)
		}
		return nil
	})
	return holder
}

// versions are the resourceVersions of all rendered objects and the status.
func (r *rig) versions() map[string]string {
	r.Helper()
	out := map[string]string{}
	var services v1alpha1.ServiceProxyRulesList
	var proxies v1alpha1.NodeProxyList
	if err := r.api.List(r.Context(), &services); err != nil {
		r.Fatal(err)
	}
	if err := r.api.List(r.Context(), &proxies); err != nil {
		r.Fatal(err)
	}
	for i := range services.Items {
		out[services.Items[i].Name] = services.Items[i].ResourceVersion
	}
	for i := range proxies.Items {
		out[proxies.Items[i].Name] = proxies.Items[i].ResourceVersion
	}
	return out
}

// steady waits until nothing has been written for two seconds.
func (r *rig) steady() map[string]string {
	r.Helper()
	last, since := r.versions(), time.Now()
	r.until("no more writes", time.Minute, func(context.Context) error {
		now := r.versions()
		if fmt.Sprint(now) != fmt.Sprint(last) {
			last, since = now, time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return fmt.Errorf("still written to: %v", now)
		}
		return nil
	})
	return last
}

// running fails if a process has ended.
func (r *rig) running(c *controller) {
	r.Helper()
	select {
	case <-c.done:
		text, _ := os.ReadFile(c.log)
		r.Fatalf("the process has ended: %s", text)
	default:
	}
}

// Who loses the lease goes on as a standby, and a takeover writes nothing that
// has not changed.
func TestElection(t *testing.T) {
	r := newRig(t)
	a := r.start()
	r.works("the first controller starts", time.Minute)
	first, _ := r.lease()
	r.serves(a, "nodeproxy_controller_leading 1", `nodeproxy_controller_nodes{state="stale"} 0`, "nodeproxy_controller_slice_change_to_write_seconds_count",
		`workqueue_depth{controller="service"`, `workqueue_queue_duration_seconds_count{controller="node"`)
	b := r.start()
	r.until("a warm standby", time.Minute, func(context.Context) error { return logged(b, "Another controller leads") })
	before := r.steady()

	r.signal(a, syscall.SIGKILL)
	r.works("killed: the standby takes over", 13*time.Second)
	second := r.held(first, time.Second)
	after := r.steady()
	for name, version := range before {
		if name != v1alpha1.NodeProxyName && after[name] != version {
			t.Errorf("the takeover has written %s", name)
		}
	}

	c := r.start()
	r.until("a warm standby", time.Minute, func(context.Context) error { return logged(c, "Another controller leads") })
	before = r.steady()
	// Nothing has changed, so nothing may be written, not even the status.
	start := time.Now()
	r.signal(b, syscall.SIGTERM)
	third := r.held(second, 2*time.Second)
	t.Logf("%-52s %6.2f s, allowed 2s", "stopped: the standby takes over", time.Since(start).Seconds())
	if after := r.steady(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the takeover has written: %v, before %v", after, before)
	}
	r.works("and works", 5*time.Second)
	<-b.done

	// Cut off for longer than the lease lasts: not one write may follow.
	d := r.start()
	r.until("a warm standby", time.Minute, func(context.Context) error { return logged(d, "Another controller leads") })
	r.steady()
	r.signal(c, syscall.SIGSTOP)
	r.until("no thread of it runs", 5*time.Second, func(context.Context) error { return isStopped(c.Process.Pid) })
	r.works("cut off: the standby takes over", 13*time.Second)
	fourth := r.held(third, time.Second)
	before = r.steady()
	r.signal(c, syscall.SIGCONT)
	r.until("the loser notices", 5*time.Second, func(context.Context) error { return logged(c, "Lost the lease") })
	if after := r.steady(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the loser has written: %v, before %v", after, before)
	}
	r.running(c)
	r.serves(c, "nodeproxy_controller_leading 0")
	if holder, _ := r.lease(); holder != fourth {
		t.Errorf("the loser has taken the lease from %q to %q", fourth, holder)
	}
	r.works("the new leader still works", 5*time.Second)

	r.signal(d, syscall.SIGKILL)
	r.works("killed: the former loser takes over again", 13*time.Second)
	if holder, _ := r.lease(); holder != third {
		t.Errorf("the lease is held by %q, want %q", holder, third)
	}
	r.running(c)
}

// logged returns nil when a controller has logged a text.
func logged(c *controller, text string) error {
	file, err := os.Open(c.log)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read from
	all, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	if !bytes.Contains(all, []byte(text)) {
		return fmt.Errorf("%d has not logged %q", c.Process.Pid, text)
	}
	return nil
}
