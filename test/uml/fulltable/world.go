package fulltable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	nodeName    = "node-1"
	nodeAddress = "192.0.2.21"
	// clusterIP is the address of the Service, podAddress that of its endpoint.
	clusterIP   = "10.96.0.10"
	podAddress  = "10.244.1.2"
	servicePort = "80"
	podPort     = "8080"
	// patience bounds every wait.
	patience = time.Minute
	// answerPatience is how long a question may be without an answer.
	answerPatience = 10 * time.Second
	// pause is between two looks.
	pause = 50 * time.Millisecond
	// descriptors are how many files may be open, connections among them.
	descriptors = 8192
)

// world is a node with an agent, in a machine of its own.
type world struct {
	*testing.T
	api   *api
	began time.Time
	stop  context.CancelFunc
	done  chan struct{}
}

// newWorld starts an agent on a node that has never tracked connections.
func newWorld(t *testing.T) *world {
	w := &world{T: t, api: newAPI(), began: time.Now(), done: make(chan struct{})}
	limit := unix.Rlimit{Cur: descriptors, Max: descriptors}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	w.run("ip address add " + nodeAddress + "/32 dev lo")
	w.run("ip address add " + podAddress + "/32 dev lo")
	w.run("ip route add 10.96.0.0/16 dev lo src " + nodeAddress)
	w.serve()
	return w
}

func (w *world) run(command string) string {
	w.Helper()
	words := strings.Fields(command)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		w.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// serve answers connections to the endpoint with what they send.
func (w *world) serve() {
	w.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(podAddress, podPort))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = listener.Close() }) // the machine ends with it
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				var buffer [1]byte
				for {
					if _, err := conn.Read(buffer[:]); err != nil {
						_ = conn.Close() // the client has closed it
						return
					}
					_, _ = conn.Write(buffer[:]) // the client notices if it fails
				}
			}()
		}
	}()
}

// startAgent starts the agent with objects of one Service.
func (w *world) startAgent(settings *v1alpha1.ConntrackSettings) {
	w.Helper()
	w.api.put("nodeproxies", &v1alpha1.NodeProxy{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeProxy"}, ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName},
		Status: v1alpha1.NodeProxyStatus{Inventory: &v1alpha1.Inventory{Services: 1, Hash: v1alpha1.FormatInventoryHash(v1alpha1.NameHash("shop.echo"))}},
	})
	w.setService(1)
	w.api.put("nodeproxyrules", &v1alpha1.NodeProxyRules{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeProxyRules"},
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "1", Generation: 1},
	})
	w.setSettings(settings)
	client, err := apiclient.New(w.api.config())
	if err != nil {
		w.Fatal(err)
	}
	plane := iptables.New(dataplane.IPv4, iptables.Options{Programs: iptables.NewPrograms("", iptables.VariantLegacy)})
	a, err := agent.New(agent.Options{
		NodeName: nodeName, Client: client, Clock: clock.RealClock{},
		Dataplanes: map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: plane},
		Flows:      conntrack.NewKernel(), Tracking: conntrack.NewSystem(""),
		Probe:              ownership.NewProbe(sockets.Kernel{}, logr.Discard()),
		ProxyHealthAddress: "0", MetricsAddress: "0", ProbeAddress: "0",
		Version: "test", Log: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(os.Stdout))),
	})
	if err != nil {
		w.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	go func() {
		defer close(w.done)
		if err := a.Run(ctx); err != nil {
			w.Errorf("the agent has ended: %v", err)
		}
	}()
}

// setService gives the Service as many ports, all of one endpoint.
func (w *world) setService(ports int32) {
	object := &v1alpha1.ServiceProxyRules{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ServiceProxyRules"},
		ObjectMeta: metav1.ObjectMeta{Name: "shop.echo", UID: "2"},
		Spec:       v1alpha1.ServiceProxyRulesSpec{FormatVersion: 1, ClusterIPs: []string{clusterIP}},
	}
	for i := range ports {
		object.Spec.Ports = append(object.Spec.Ports, v1alpha1.ServicePort{
			Name: fmt.Sprint("port-", i), Protocol: v1alpha1.ProtocolTCP, Port: 80 + i,
			Endpoints: []v1alpha1.EndpointGroup{{State: v1alpha1.EndpointReady, Addresses: []string{net.JoinHostPort(podAddress, podPort)}}},
		})
	}
	w.api.put("serviceproxyrules", object)
}

// setSettings changes the settings of connection tracking.
func (w *world) setSettings(settings *v1alpha1.ConntrackSettings) {
	own := w.api.own()
	own.Generation++
	own.Spec = v1alpha1.NodeProxyRulesSpec{
		FormatVersion: 1, SettingsRevision: fmt.Sprint(own.Generation), Node: v1alpha1.NodeFacts{Addresses: []string{nodeAddress}},
		Settings: v1alpha1.ProxySettings{Conntrack: settings, Sync: &v1alpha1.SyncSettings{VerifyIntervalSeconds: new(int32(5))}},
	}
	w.api.put("nodeproxyrules", own)
}

// await waits until the stored status is as expected, and returns it.
func (w *world) await(what string, check func(*v1alpha1.NodeProxyRulesStatus) error) *v1alpha1.NodeProxyRulesStatus {
	w.Helper()
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		own := w.api.own()
		if last = check(&own.Status); last == nil {
			w.Logf("%s: %s after the start", what, time.Since(w.began).Round(time.Millisecond))
			return &own.Status
		}
		wait(pause)
	}
	own := w.api.own()
	w.Fatalf("%s: not within %v: %v; the status is %s", what, patience, last, encode(own.Status))
	return nil
}

func wait(d time.Duration) { <-time.After(d) }

// ask sends a byte and waits for its return.
func ask(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(answerPatience)); err != nil {
		return fmt.Errorf("setting a deadline: %w", err)
	}
	if _, err := conn.Write([]byte{'x'}); err != nil {
		return fmt.Errorf("asking: %w", err)
	}
	var answer [1]byte
	if _, err := conn.Read(answer[:]); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

// questions asks on held connections, again and again.
type questions struct {
	mu            sync.Mutex
	tried, failed int
	failure       error
	stop, done    chan struct{}
}

func hold(conns []net.Conn) *questions {
	l := &questions{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for i := 0; ; i++ {
			select {
			case <-l.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			err := ask(conns[i%len(conns)])
			l.mu.Lock()
			l.tried++
			if err != nil {
				l.failed++
				l.failure = errors.Join(l.failure, err)
			}
			l.mu.Unlock()
		}
	}()
	return l
}

func (l *questions) end() (tried, failed int, failure error) {
	close(l.stop)
	<-l.done
	return l.tried, l.failed, l.failure
}
