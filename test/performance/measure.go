package main

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// measurement is one run.
type measurement struct {
	options
	nodeproxy  *install.Nodeproxy
	node       *cluster.Node
	client     client.Client
	controller *cluster.Process
	agent      *cluster.Process

	variant         string
	created, loaded time.Duration
}

const namespace = "default"

func serviceName(i int) string { return fmt.Sprintf("svc-%05d", i) }

// address is the j-th endpoint of the i-th Service. Nothing answers there: only
// rules are looked at.
func address(i, j int) string { return fmt.Sprintf("10.%d.%d.%d", 128+i/250, i%250, j) }

// load installs nodeproxy and waits until all Services are in the kernel.
func (m *measurement) load(ctx context.Context) error {
	if err := m.nodeproxy.Prepare(ctx); err != nil {
		return err
	}
	if err := m.nodeproxy.Enable(ctx); err != nil {
		return err
	}
	var err error
	if m.controller, err = m.nodeproxy.StartController(); err != nil {
		return err
	}
	if m.agent, err = m.nodeproxy.StartAgent(m.node); err != nil {
		return err
	}
	if err := install.Until(ctx, time.Minute, m.nodeproxy.Programmed); err != nil {
		return fmt.Errorf("%w\n%s\n%s", err, m.controller.Tail(), m.agent.Tail())
	}
	version, err := m.node.Exec(ctx, "iptables", "--version")
	if err != nil {
		return err
	}
	_, m.variant, _ = strings.Cut(strings.TrimSpace(version), " v")
	start := time.Now()
	if err := m.createServices(ctx); err != nil {
		return err
	}
	m.created = time.Since(start)
	err = install.Until(ctx, 5*time.Minute, func(ctx context.Context) error {
		out, err := m.node.Exec(ctx, "iptables", "-w", "5", "-t", "nat", "-S", "KUBE-SERVICES")
		if err != nil {
			return err
		}
		if n := strings.Count(out, namespace+"/svc-"); n < m.services {
			return fmt.Errorf("%d of %d Services are in the kernel", n, m.services)
		}
		return nil
	})
	m.loaded = time.Since(start)
	return err
}

func (m *measurement) createServices(ctx context.Context) error {
	errs := make(chan error, 16)
	var group sync.WaitGroup
	work := make(chan int)
	for range cap(errs) {
		group.Go(func() {
			for i := range work {
				if err := m.createService(ctx, i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for i := range m.services {
		select {
		case work <- i:
		case err := <-errs:
			return err
		}
	}
	close(work)
	group.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// createService creates a Service without selector and its EndpointSlice.
func (m *measurement) createService(ctx context.Context, i int) error {
	err := m.client.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(i)},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	})
	if err != nil {
		return err
	}
	return m.client.Create(ctx, m.slice(i, m.endpoints))
}

// nodeOf spreads endpoints over a hundred nodes, of which one exists.
func (m *measurement) nodeOf(i, number int) string {
	if n := (i + number) % 100; n != 0 {
		return fmt.Sprintf("elsewhere-%d", n)
	}
	return m.node.Name()
}

// slice holds the first endpoints of a Service and, last, the one numbered last.
func (m *measurement) slice(i, last int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: serviceName(i) + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for j := 1; j <= m.endpoints; j++ {
		number := j
		if j == m.endpoints {
			number = last
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address(i, number)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			NodeName:   new(m.nodeOf(i, number)),
		})
	}
	return slice
}

// changeEndpoints changes one endpoint after the other and returns how long
// each took from the start of the write to the kernel's announcement of the new
// endpoint's chain.
func (m *measurement) changeEndpoints(ctx context.Context) ([]time.Duration, error) {
	announcements, err := watchRules(m.node)
	if err != nil {
		return nil, err
	}
	defer announcements.Close()
	var out []time.Duration
	for n := range m.changes {
		i := (n*37 + 11) % m.services
		number := 100 + n%100
		start := time.Now()
		if err := m.client.Update(ctx, m.slice(i, number)); err != nil {
			return nil, err
		}
		if err := announcements.waitFor(endpointChain(i, number)); err != nil {
			return nil, fmt.Errorf("change %d, Service %s: %w\n%s", n, serviceName(i), err, m.agent.Tail())
		}
		out = append(out, time.Since(start))
		// Far enough apart that each change is written at once.
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(400 * time.Millisecond):
		}
	}
	return out, nil
}

// endpointChain is the name of an endpoint's chain, which is kube-proxy's.
func endpointChain(i, number int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s:httptcp%s:8080", namespace, serviceName(i), address(i, number)))
	return "KUBE-SEP-" + base32.StdEncoding.EncodeToString(sum[:10])
}
