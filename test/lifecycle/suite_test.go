package lifecycle

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodeproxy-io/nodeproxy/agent"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

// namespace is that of the Leases. Every API server has it.
const namespace = "default"

// access and api reach the API server of the suite as an administrator.
var (
	access *rest.Config
	api    client.Client
)

func TestLifecycle(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		const message = "KUBEBUILDER_ASSETS is not set: these tests start a real API server; `make test` builds it and sets this"
		if testing.Short() {
			t.Skip(message)
		}
		t.Fatal(message)
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	RunSpecs(t, "controller and agents")
}

var _ = BeforeSuite(func() {
	ctrl.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(GinkgoWriter))))
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	var err error
	access, err = environment.Start()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(environment.Stop()).To(Succeed()) })
	access.QPS = -1
	scheme, err := objects.NewScheme()
	Expect(err).NotTo(HaveOccurred())
	api, err = client.New(access, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
})

// Every spec ends with an empty cluster, after what it has started has stopped.
var _ = BeforeEach(func() {
	DeferCleanup(func(ctx SpecContext) {
		for _, kind := range []client.Object{&v1alpha1.NodeProxy{}, &v1alpha1.NodeProxyRules{}, &v1alpha1.ServiceProxyRules{}, &corev1.Node{}} {
			Expect(api.DeleteAllOf(ctx, kind)).To(Succeed())
		}
		Expect(api.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(namespace))).To(Succeed())
	})
})

// startController starts a controller that writes some versions of the format;
// none: those of this release. It stops at the end of the spec at the latest.
func startController(formats ...int32) (stop func()) {
	GinkgoHelper()
	scheme, err := objects.NewScheme()
	Expect(err).NotTo(HaveOccurred())
	cacheOptions, err := controllers.CacheOptions(namespace)
	Expect(err).NotTo(HaveOccurred())
	mgr, err := ctrl.NewManager(access, ctrl.Options{
		Scheme: scheme, Cache: cacheOptions, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // several specs, one process
	})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	Expect(controllers.SetupWithManager(ctx, mgr, controllers.Options{
		Version: "v0.1.0", Clock: clock.RealClock{}, Namespace: namespace, Registerer: prometheus.NewRegistry(), FormatVersions: formats,
	})).To(Succeed())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		Eventually(done).Should(Receive(BeNil()))
	})
	DeferCleanup(stop)
	return stop
}

// node is a Node and what its agent programs.
type node struct {
	name   string
	kernel *dataplanetest.Fake
	stop   func()         // the agent
	log    *gbytes.Buffer // of the agent since it was started last
	looks  atomic.Int64   // how often an agent has checked for other proxies
}

// logged is what the agent has logged since it was started last.
func (n *node) logged() string { return string(n.log.Contents()) }

// startNode registers a Node with taints and starts its agent, which knows some
// versions of the format; none: those of this release.
func startNode(ctx context.Context, name string, taints []corev1.Taint, formats ...int32) *node {
	GinkgoHelper()
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Spec:       corev1.NodeSpec{Taints: taints},
	}
	Expect(api.Create(ctx, object)).To(Succeed())
	n := &node{name: name, kernel: dataplanetest.NewFake()}
	n.start(formats...)
	return n
}

// start starts the node's agent, which stops at the end of the spec at the latest.
func (n *node) start(formats ...int32) {
	GinkgoHelper()
	log := gbytes.NewBuffer()
	n.log = log
	c, err := apiclient.New(access)
	Expect(err).NotTo(HaveOccurred())
	a, err := agent.New(agent.Options{
		NodeName: n.name, Namespace: namespace, Client: c,
		Dataplanes:     map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: n.kernel},
		IPTables:       func() string { return "1.8.9 (nf_tables)" },
		Probe:          func(context.Context, string) (string, error) { n.looks.Add(1); return "", nil }, // no other proxy
		FormatVersions: formats, Version: "v0.1.0", Kernel: "6.18.0", Clock: clock.RealClock{},
		Log: funcr.New(func(prefix, args string) {
			fmt.Fprintln(log, prefix, args)
			fmt.Fprintln(GinkgoWriter, n.name, prefix, args)
		}, funcr.Options{Verbosity: 4}), // which logs what it knows
	})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		Eventually(done).Should(Receive(BeNil()))
	})
	DeferCleanup(n.stop)
}

// condition returns status and reason of one of the node's conditions; for
// Eventually.
func (n *node) condition(ctx context.Context, kind string) func() (string, error) {
	return func() (string, error) {
		rules := &v1alpha1.NodeProxyRules{}
		if err := api.Get(ctx, client.ObjectKey{Name: n.name}, rules); err != nil {
			return "", err
		}
		c := meta.FindStatusCondition(rules.Status.Conditions, kind)
		if c == nil {
			return "absent", nil
		}
		return string(c.Status) + " " + c.Reason, nil
	}
}

// programmed reports whether the node's kernel serves a Service; for Eventually.
func (n *node) programmed(service string) func() bool {
	return func() bool { return n.kernel.Service(namespace, service) != nil }
}

// knowsNone waits until the agent, since it was started, has taken in empty lists.
func (n *node) knowsNone(resources ...string) {
	GinkgoHelper()
	for _, resource := range resources {
		Eventually(n.logged).Should(ContainSubstring(fmt.Sprintf(`"resource"=%q "objects"=0`, resource)))
	}
}

// decides waits until an agent that does not write has decided again whether it may:
// it checks for other proxies each time, after it has looked whether there is something
// to write. The first look may belong to a decision on what it knew before, the second
// begins a new one, and by the third that is made.
func (n *node) decides() {
	GinkgoHelper()
	before := n.looks.Load()
	Eventually(n.looks.Load).Should(BeNumerically(">=", before+3))
}

// reconciled counts how often a reconciler of this process has come to an end; for
// Eventually.
func reconciled(name string) func() (float64, error) {
	return func() (float64, error) {
		families, err := metrics.Registry.Gather()
		sum := 0.0
		for _, family := range families {
			if family.GetName() != "controller_runtime_reconcile_total" {
				continue
			}
			for _, m := range family.GetMetric() {
				for _, label := range m.GetLabel() {
					if label.GetName() == "controller" && label.GetValue() == name {
						sum += m.GetCounter().GetValue()
					}
				}
			}
		}
		return sum, err
	}
}

// switchOn creates the NodeProxy.
func switchOn(ctx context.Context, policy v1alpha1.RemovalPolicy) {
	GinkgoHelper()
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	np.Spec.RemovalPolicy = &policy
	Expect(api.Create(ctx, np)).To(Succeed())
}

// createService creates a Service for the time of the spec.
func createService(ctx context.Context, name string) {
	GinkgoHelper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	Expect(api.Create(ctx, svc)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(api.Delete(ctx, svc)).To(Succeed()) })
}
