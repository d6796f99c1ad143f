package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// Labels of pods.
const (
	appLabel  = "app"
	sideLabel = "side"
	stays     = "stays" // the side of nodes that no fault reboots: all but the first
	leaves    = "leaves"
)

// Node ports.
const (
	webPort      = 30080
	changingPort = 30081
	staysPort    = 30082
)

// makeServices makes Services of several kinds with two pods on each node, and
// states where connections to them are made.
func (w *world) makeServices() error {
	for i, node := range w.cluster.Nodes() {
		if err := w.makePods(i, node); err != nil {
			return err
		}
	}
	for _, s := range []struct {
		name     string
		selector map[string]string
		change   func(*corev1.ServiceSpec)
		vips     []string
		via      int
	}{
		{name: "web", selector: map[string]string{appLabel: "web"}, change: nodePort(webPort)},
		{name: "changing", selector: map[string]string{appLabel: "changing"}, change: nodePort(changingPort)},
		{name: "stays", selector: map[string]string{appLabel: "web", sideLabel: stays}, change: nodePort(staysPort)},
		{name: "spare", selector: map[string]string{appLabel: "web"}},
		{name: "open", selector: map[string]string{appLabel: "web"}, change: balanced, vips: []string{"203.0.113.11", "2001:db8::11"}},
		{name: "local", selector: map[string]string{appLabel: "web"}, via: 1, vips: []string{"203.0.113.10", "2001:db8::10"}, change: func(s *corev1.ServiceSpec) {
			balanced(s)
			s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}},
	} {
		service, err := w.makeService(s.name, s.selector, s.change, s.vips...)
		if err != nil {
			return err
		}
		for _, ip := range s.vips {
			if err := w.cluster.RouteFromOutside(ip, w.cluster.Node(s.via)); err != nil {
				return err
			}
			via := w.cluster.Node(s.via)
			servers := w.servers(func(p *cluster.Pod) bool { return s.name == "open" || p.Node() == via })
			w.targets = append(w.targets, load.Target{Name: "load balancer's address", From: w.cluster.Outside(), Via: via.Name(),
				Network: "tcp", Address: net.JoinHostPort(ip, "80"), Servers: servers})
		}
		if s.name == "web" || s.name == "changing" {
			w.addTargets(service, s.name == "web")
		}
	}
	return nil
}

// makePods runs the pods of a node.
func (w *world) makePods(i int, node *cluster.Node) error {
	side := stays
	if i == 0 {
		side = leaves
	}
	for _, app := range []string{"web", "changing", "visitor"} {
		for j := range 2 {
			if app == "visitor" && j > 0 {
				continue
			}
			pod, err := node.RunPod(w.ctx, cluster.PodSpec{
				Name: fmt.Sprintf("%s-%d-%d", app, i+1, j+1), Labels: map[string]string{appLabel: app, sideLabel: side},
			})
			if err != nil {
				return err
			}
			if app == "changing" {
				w.changing = append(w.changing, pod)
			}
		}
	}
	return nil
}

// servers are the names of the chosen pods of Service web.
func (w *world) servers(match func(*cluster.Pod) bool) []string {
	var out []string
	for _, node := range w.cluster.Nodes() {
		for _, pod := range node.Pods() {
			if pod.Name()[:3] == "web" && match(pod) {
				out = append(out, pod.Name())
			}
		}
	}
	return out
}

// visitor is the pod of a node that makes connections.
func visitor(node *cluster.Node) *cluster.Pod {
	pods := node.Pods()
	return pods[slices.IndexFunc(pods, func(p *cluster.Pod) bool { return p.Name()[:7] == "visitor" })]
}

// addTargets adds connections to a Service from pods, nodes and the outside, by
// the rules of each node.
func (w *world) addTargets(service *corev1.Service, steady bool) {
	var servers []string // those of Service changing are all right as long as they answer
	if steady {
		servers = w.servers(func(*cluster.Pod) bool { return true })
	}
	for _, node := range w.cluster.Nodes() {
		add := func(name string, from *cluster.Place, network, ip string, port int32) {
			w.targets = append(w.targets, load.Target{Name: service.Name + ", " + name, From: from, Via: node.Name(),
				Network: network, Address: net.JoinHostPort(ip, strconv.Itoa(int(port))), Servers: servers})
		}
		for family, ip := range service.Spec.ClusterIPs {
			add("cluster IP", visitor(node).Place, "tcp", ip, 80)
			add("cluster IP", node.Place, "tcp", ip, 80)
			if !steady {
				continue
			}
			add("cluster IP", visitor(node).Place, "udp", ip, 80)
			own := []string{node.Address(), node.Address6()}[family]
			add("node port", w.cluster.Outside(), "tcp", own, webPort)
			add("node port", w.cluster.Outside(), "udp", own, webPort)
		}
	}
}

func nodePort(number int32) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		s.Type, s.Ports[0].NodePort, s.Ports[1].NodePort = corev1.ServiceTypeNodePort, number, number
	}
}

func balanced(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }

// makeService makes a Service for TCP and UDP of both IP families.
func (w *world) makeService(name string, selector map[string]string, change func(*corev1.ServiceSpec), vips ...string) (*corev1.Service, error) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.ServiceSpec{
			Selector: selector,
			Ports: []corev1.ServicePort{
				{Name: "tcp", Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "udp", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolUDP},
			},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
		},
	}
	if change != nil {
		change(&service.Spec)
	}
	if err := w.cluster.Client().Create(w.ctx, service); err != nil {
		return nil, err
	}
	if len(vips) == 0 {
		return service, nil
	}
	before := client.MergeFrom(service.DeepCopy())
	for _, ip := range vips {
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return service, w.cluster.Client().Status().Patch(w.ctx, service, before)
}

// makeMore makes the Services without connections. They make reading and
// writing rules take longer.
func (w *world) makeMore() error {
	numbers := make(chan int)
	errs := make(chan error, w.more+1)
	var makers sync.WaitGroup
	for range 8 {
		makers.Go(func() {
			for i := range numbers {
				var addresses []string
				for j := range 10 {
					addresses = append(addresses, fmt.Sprintf("10.251.%d.%d", i/20, i%20*10+j+1))
				}
				if _, err := w.makeByHand(fmt.Sprintf("more-%d", i), 80, [][]string{addresses}); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range w.more {
		numbers <- i
	}
	close(numbers)
	makers.Wait()
	errs <- nil
	return <-errs
}

// makeByHand makes a Service of IPv4 and TCP without a selector, and its
// EndpointSlices, each with the given addresses.
func (w *world) makeByHand(name string, targetPort int32, addresses [][]string) (objects []*discoveryv1.EndpointSlice, err error) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "tcp", Port: 80, TargetPort: intstr.FromInt32(targetPort)}}},
	}
	if err := w.cluster.Client().Create(w.ctx, service); err != nil {
		return nil, err
	}
	for i, some := range addresses {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-%d", name, i),
				Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "test"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: &targetPort}},
			Endpoints:   w.endpoints(some),
		}
		if err := w.cluster.Client().Create(w.ctx, slice); err != nil {
			return nil, err
		}
		objects = append(objects, slice)
	}
	return objects, nil
}

// endpoints are ready endpoints on the second node.
func (w *world) endpoints(addresses []string) []discoveryv1.Endpoint {
	var out []discoveryv1.Endpoint
	for _, address := range addresses {
		out = append(out, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: new(w.cluster.Node(1).Name()),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	return out
}

// change makes one pod of Service changing unready after another, and ready
// again, until the returned function is called, which waits until the
// EndpointSlices have all of them again. Pods that are not ready still answer: a
// change that arrives late harms no connection. Outside of outages, the changes must succeed.
func (r *run) change(every time.Duration) (stop func()) {
	return r.changeAtLeast(every, func(took time.Duration) int64 { return int64(1 + (took-r.outage)/every/10) }) // a busy machine is slower
}

// changeAtLeast is change with the least number of changes in a time.
func (r *run) changeAtLeast(every time.Duration, least func(took time.Duration) int64) (stop func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	var running sync.WaitGroup
	started := time.Now()
	r.changes.Store(0)
	running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := 0; ; i++ {
			pod := r.changing[i/2%len(r.changing)]
			if pod.SetReady(ctx, i%2 == 1) == nil { // an API server that fails may be the fault
				r.changes.Add(1)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		r.Helper()
		cancel()
		running.Wait()
		begun := time.Now()
		if n, least := r.changes.Load(), least(begun.Sub(started)); n < least {
			r.Errorf("only %d changes of endpoints, want %d at least: this proves too little", n, least)
		}
		r.until(time.Minute, func(ctx context.Context) error {
			for _, pod := range r.changing {
				if err := pod.SetReady(ctx, true); err != nil {
					return err
				}
			}
			return nil
		})
		r.until(time.Minute, r.podsInSlices)
		r.listing += time.Since(begun)
	}
}

// podsInSlices returns nil when the EndpointSlices have each ready pod that a Service
// selects, in both IP families. It updates a Service that lacks one: where Kubernetes'
// controller has met pods of a Node that it did not know, it tries again only after up
// to 1,000 s, or when the Service is updated.
func (w *world) podsInSlices(ctx context.Context) error {
	listed, err := w.desired(ctx, nil)
	if err != nil {
		return err
	}
	services, pods := &corev1.ServiceList{}, &corev1.PodList{}
	if err := errors.Join(w.cluster.Client().List(ctx, services), w.cluster.Client().List(ctx, pods)); err != nil {
		return err
	}
	for _, service := range services.Items {
		lacks := ""
		for _, pod := range pods.Items {
			if len(service.Spec.Selector) > 0 && labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.Labels)) && podReady(&pod) {
				lacks = cmp.Or(lacks, unlisted(&service, &pod, listed))
			}
		}
		if lacks == "" {
			continue
		}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"updated":"%d"}}}`, time.Now().UnixNano()))
		return errors.Join(fmt.Errorf("no EndpointSlice of Service %s has %s", service.Name, lacks), w.cluster.Client().Patch(ctx, &service, patch))
	}
	return nil
}

// unlisted is an address of a pod that is no endpoint of a Service in a list of desired;
// empty: all are.
func unlisted(service *corev1.Service, pod *corev1.Pod, listed []string) string {
	for _, ip := range service.Spec.ClusterIPs {
		for _, own := range pod.Status.PodIPs {
			if strings.Contains(ip, ":") != strings.Contains(own.IP, ":") {
				continue
			}
			for _, port := range service.Spec.Ports {
				if _, ok := slices.BinarySearch(listed, front(ip, port)+" "+net.JoinHostPort(own.IP, port.TargetPort.String())); !ok {
					return own.IP
				}
			}
		}
	}
	return ""
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
