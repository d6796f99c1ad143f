package controllers_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/test/shards"
)

func TestControllers(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		const missing = "KUBEBUILDER_ASSETS is not set, so there is no API server to test against: `make test` builds one and sets it"
		if testing.Short() {
			t.Skip(missing)
		}
		t.Fatal(missing)
	}
	if shards.Run(t, 3) {
		return
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(10 * time.Second)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	RunSpecs(t, "controllers")
}

var (
	apiServer  *envtest.Environment
	roleConfig *rest.Config     // what the controller uses: it may do only what its role allows
	k8s        client.WithWatch // straight to the API server as an administrator, no cache
	testClock  *shiftedClock
)

var _ = BeforeSuite(func() {
	ctrl.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(2), textlogger.Output(GinkgoWriter))))
	apiServer = &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	apiConfig, err := apiServer.Start()
	Expect(err).NotTo(HaveOccurred())
	apiConfig.QPS = -1
	user, err := apiServer.AddUser(envtest.User{Name: controllerUser}, apiConfig)
	Expect(err).NotTo(HaveOccurred())
	roleConfig = user.Config()
	scheme, err := objects.NewScheme()
	Expect(err).NotTo(HaveOccurred())
	Expect(admissionv1.AddToScheme(scheme)).To(Succeed())
	Expect(authenticationv1.AddToScheme(scheme)).To(Succeed())
	Expect(rbacv1.AddToScheme(scheme)).To(Succeed())
	Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
	k8s, err = client.NewWithWatch(apiConfig, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	grantRole()
})

const controllerUser = "nodeproxy-controller"

const leaseNamespace = "nodeproxy-system"

// grantRole gives the controller's user the roles that are installed with it.
func grantRole() {
	ctx := context.Background()
	file, err := os.Open(filepath.Join("..", "config", "rbac", "controller_role.yaml"))
	Expect(err).NotTo(HaveOccurred(), "`make generate` writes the role")
	defer func() { _ = file.Close() }() // only read from
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: controllerUser}}
	documents := yaml.NewYAMLOrJSONDecoder(file, 4096)
	role, local := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	Expect(documents.Decode(role)).To(Succeed())
	Expect(documents.Decode(local)).To(Succeed())
	Expect([]string{role.Kind, local.Kind, local.Namespace}).To(Equal([]string{"ClusterRole", "Role", leaseNamespace}))
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leaseNamespace}}, role, local,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: local.Name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: local.Name},
		},
	} {
		Expect(k8s.Create(ctx, object)).To(Succeed())
	}
}

var _ = AfterSuite(func() {
	if apiServer != nil {
		Expect(apiServer.Stop()).To(Succeed())
	}
})

// Every spec starts with the real time, and ends with an empty cluster. What a
// spec starts is cleaned up before, so that nothing fills the cluster again.
var _ = BeforeEach(func() {
	shards.Claim()
	testClock = &shiftedClock{}
	DeferCleanup(emptyCluster)
})

func emptyCluster(ctx SpecContext) {
	for _, kind := range []client.Object{
		&admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.ValidatingAdmissionPolicy{},
		&v1alpha1.NodeProxy{}, &v1alpha1.NodeProxyPolicy{}, &v1alpha1.NodeProxyRules{}, &v1alpha1.ServiceProxyRules{}, &corev1.Node{},
		&v1alpha1.ServiceProxyPolicy{},
	} {
		Expect(k8s.DeleteAllOf(ctx, kind)).To(Succeed())
	}
	for _, kind := range []client.Object{&coordinationv1.Lease{}, &appsv1.DaemonSet{}, &corev1.ConfigMap{}, &corev1.Pod{}} {
		Expect(k8s.DeleteAllOf(ctx, kind, client.InNamespace(leaseNamespace), client.GracePeriodSeconds(0))).To(Succeed())
	}
	var services corev1.ServiceList
	Expect(k8s.List(ctx, &services)).To(Succeed())
	for i := range services.Items {
		if svc := &services.Items[i]; svc.Namespace != "default" { // the API server keeps its own
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, svc))).To(Succeed())
		}
	}
	var slices discoveryv1.EndpointSliceList
	Expect(k8s.List(ctx, &slices)).To(Succeed())
	for i := range slices.Items {
		if slice := &slices.Items[i]; slice.Namespace != "default" {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, slice))).To(Succeed())
		}
	}
}

// shiftedClock is the real clock, put forward.
type shiftedClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *shiftedClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *shiftedClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// NewTicker makes one that is fifty times as fast, so that tests that put the
// clock forward need not wait for what looks every few seconds.
func (c *shiftedClock) NewTicker(d time.Duration) clock.Ticker { return c.RealClock.NewTicker(d / 50) }

// putForward moves the clock.
func (c *shiftedClock) putForward(d time.Duration) { c.ahead.Add(int64(d)) }

// running is a controller at work.
type running struct {
	stop       func()
	metrics    *prometheus.Registry
	cache      cache.Cache // what it reads from
	reconciles *reconcileCounts
	dueBefore  map[string]float64 // what controllers before it in this process have left behind
}

// startController starts a controller, with options changed by edit, which stops
// at the end of the spec at the latest.
func startController(edit ...func(*controllers.Options)) *running {
	GinkgoHelper()
	return startControllerAs(roleConfig, edit...)
}

// startControllerAs is startController as another user.
func startControllerAs(who *rest.Config, edit ...func(*controllers.Options)) *running {
	GinkgoHelper()
	scheme, err := objects.NewScheme()
	Expect(err).NotTo(HaveOccurred())
	cacheOptions, err := controllers.CacheOptions(leaseNamespace)
	Expect(err).NotTo(HaveOccurred())
	several := true // controllers of this process may bear the same names
	reconciles := &reconcileCounts{counts: map[string]int{}, works: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	mgr, err := ctrl.NewManager(who, ctrl.Options{
		Scheme:     scheme,
		Logger:     reconciles.logger(),
		Cache:      cacheOptions,
		NewCache:   controllers.NewCache(ctx),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &several},
	})
	Expect(err).NotTo(HaveOccurred())
	r := &running{metrics: prometheus.NewRegistry(), cache: mgr.GetCache(), reconciles: reconciles, dueBefore: dueReconciles()}
	options := controllers.Options{
		Version: "v0.0.0-test", Clock: testClock, Namespace: leaseNamespace, Registerer: r.metrics,
	}
	for _, e := range edit {
		e(&options)
	}
	Expect(controllers.SetupWithManager(ctx, mgr, options)).To(Succeed())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stopped := false
	r.stop = func() {
		GinkgoHelper()
		if !stopped {
			stopped = true
			cancel()
			Eventually(done, "30s").Should(Receive(BeNil()))
		}
	}
	DeferCleanup(r.stop)
	return r
}

// metric sums the samples of a metric over all its labels; of a histogram, it
// counts the observations.
func (r *running) metric(name string) float64 {
	GinkgoHelper()
	families, err := r.metrics.Gather()
	Expect(err).NotTo(HaveOccurred())
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

var namespaces atomic.Int32

// newNamespace creates a namespace of the spec's own.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	ns := &corev1.Namespace{}
	ns.Name = fmt.Sprintf("test-%d", namespaces.Add(1))
	Expect(k8s.Create(ctx, ns)).To(Succeed())
	return ns.Name
}
