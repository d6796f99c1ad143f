package apitest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nodeproxy-io/nodeproxy/agent"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/shards"
)

// config and api reach the API server of the suite.
var (
	environment *envtest.Environment
	config      *rest.Config
	api         client.WithWatch
)

func TestAgentAgainstAPIServer(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		const message = "KUBEBUILDER_ASSETS is not set: these tests start a real API server; `make test` builds it and sets this"
		if testing.Short() {
			t.Skip(message)
		}
		t.Fatal(message)
	}
	if shards.Run(t, 2) {
		return
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(20 * time.Second)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	RunSpecs(t, "agent against an API server")
}

var _ = BeforeEach(shards.Claim)

var _ = BeforeSuite(func() {
	environment = &envtest.Environment{
		CRDDirectoryPaths:     []string{"../../config/crd/bases"},
		ErrorIfCRDPathMissing: true,
	}
	var err error
	config, err = environment.Start()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(environment.Stop()).To(Succeed()) })
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme, rbacv1.AddToScheme} {
		Expect(add(scheme)).To(Succeed())
	}
	api, err = client.NewWithWatch(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
})

// namespace is that of the Leases. Every API server has it.
const namespace = "default"

// node is one node with its agent. Every spec has its own, so that specs do
// not wait for each other's objects to go.
type node struct {
	name   string
	kernel *dataplanetest.Fake
	other  *otherProxy
	log    *gbytes.Buffer // of the agent since it was started last
	probes string         // the address of the kubelet's probes, and of metrics
	// formats are the versions that its agent knows; none: those of this release.
	formats []int32
	stop    func()
}

var nodes int

// newNode makes a node whose agent does not run yet.
func newNode() *node {
	nodes++
	n := &node{name: fmt.Sprintf("node-%d", nodes), kernel: dataplanetest.NewFake(), other: newOtherProxy(), log: gbytes.NewBuffer(), probes: freeAddress()}
	DeferCleanup(n.other.close)
	return n
}

// start runs the agent until the spec ends or stop is called.
func (n *node) start() *node {
	return n.startAt(clock.RealClock{}, config)
}

func (n *node) startAt(clk clock.Clock, config *rest.Config) *node {
	GinkgoHelper()
	log := gbytes.NewBuffer()
	n.log = log
	c, err := apiclient.New(config)
	Expect(err).NotTo(HaveOccurred())
	a, err := agent.New(agent.Options{
		NodeName: n.name, Namespace: namespace, Client: c,
		Dataplanes:     map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: n.kernel},
		IPTables:       func() string { return "1.8.9 (nf_tables)" },
		Probe:          ownership.ProbeProxyMode(netip.MustParseAddrPort(n.other.address()), ofRoot{}, logr.Discard()),
		ProbeAddress:   n.probes,
		FormatVersions: n.formats,
		Version:        "v0.1.0", Kernel: "6.18.0", Clock: clk,
		Log: funcr.New(func(prefix, args string) { fmt.Fprintln(log, prefix, args) }, funcr.Options{Verbosity: 4}), // which reports what it knows
	})
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer GinkgoRecover()
		defer close(done)
		Expect(a.Run(ctx)).To(Succeed())
	}()
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	DeferCleanup(n.stop)
	return n
}

// ofRoot has every listener be root's, whatever user runs the tests.
type ofRoot struct{ sockets.Kernel }

func (k ofRoot) Listening(at netip.AddrPort) (*sockets.Listener, error) {
	l, err := k.Kernel.Listening(at)
	if l != nil {
		l.UID = 0
	}
	return l, err
}

// logged is what the agent has logged since it was started last.
func (n *node) logged() string { return string(n.log.Contents()) }

// otherProxy is a port on which another proxy may answer.
type otherProxy struct {
	mu     sync.Mutex
	server *httptest.Server
	mode   string // empty: 404, as of something that is no proxy
	asked  int    // how often
}

func newOtherProxy() *otherProxy {
	o := &otherProxy{}
	o.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.asked++
		if o.mode == "" || r.URL.Path != "/proxyMode" {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprint(w, o.mode)
	}))
	return o
}

func (o *otherProxy) address() string { return strings.TrimPrefix(o.server.URL, "http://") }

// answer lets the proxy answer with a mode.
func (o *otherProxy) answer(mode string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mode = mode
}

// questions counts how often it was asked.
func (o *otherProxy) questions() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked
}

// close ends the proxy: nothing answers any more.
func (o *otherProxy) close() { o.server.Close() }

// rules returns the stored NodeProxyRules of the node.
func (n *node) rules(ctx context.Context) *v1alpha1.NodeProxyRules {
	GinkgoHelper()
	object := &v1alpha1.NodeProxyRules{}
	Expect(api.Get(ctx, client.ObjectKey{Name: n.name}, object)).To(Succeed())
	return object
}

// condition returns status/reason of a condition, for Eventually.
func (n *node) condition(ctx context.Context, kind string) func() string {
	return func() string {
		object := &v1alpha1.NodeProxyRules{}
		if err := api.Get(ctx, client.ObjectKey{Name: n.name}, object); err != nil {
			return err.Error()
		}
		return conditionOf(object, kind)
	}
}

// conditionOf is status/reason of a condition.
func conditionOf(object *v1alpha1.NodeProxyRules, kind string) string {
	for _, c := range object.Status.Conditions {
		if c.Type == kind {
			return string(c.Status) + "/" + c.Reason
		}
	}
	return "absent"
}

// message returns the message of a condition.
func (n *node) message(ctx context.Context, kind string) string {
	GinkgoHelper()
	for _, c := range n.rules(ctx).Status.Conditions {
		if c.Type == kind {
			return c.Message
		}
	}
	return ""
}

// createRules makes the node's NodeProxyRules.
func (n *node) createRules(ctx context.Context, edit func(*v1alpha1.NodeProxyRulesSpec)) {
	GinkgoHelper()
	object := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
	object.Spec = v1alpha1.NodeProxyRulesSpec{
		FormatVersion: 1, SettingsRevision: "7d1f0a9c", Settings: *v1alpha1.CompleteSettings(nil),
		Node: v1alpha1.NodeFacts{Addresses: []string{"192.0.2.21"}, Zone: "zone-a"},
	}
	if edit != nil {
		edit(&object.Spec)
	}
	Expect(api.Create(ctx, object)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		Expect(client.IgnoreNotFound(api.Delete(ctx, object))).To(Succeed())
	})
}

// editRules changes the spec of the node's NodeProxyRules.
func (n *node) editRules(ctx context.Context, edit func(*v1alpha1.NodeProxyRulesSpec)) {
	GinkgoHelper()
	object := n.rules(ctx)
	edit(&object.Spec)
	Expect(api.Update(ctx, object)).To(Succeed())
}
