package faults

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

const (
	// goneFor is how long after its removal an endpoint may still get new
	// connections: twice the longest pause of an agent between two syncs.
	goneFor = 3 * time.Second
	// together is how many endpoints change with one write, as when pods of a
	// large Deployment are replaced.
	together = 4
	// perSlice is how many endpoints a slice has, as Kubernetes makes them.
	perSlice = 100
	// largePort is where all addresses of large Services answer.
	largePort = 9090
)

func endpointFaults() []fault {
	return []fault{
		{name: "endpoint-changes", title: "1,000 endpoint changes in 10 s, Services of up to 500", repair: 30 * time.Second, inject: endpointChanges},
		{name: "controller-killed", title: "leading controller killed (-9) during endpoint changes", repair: 30 * time.Second, inject: controllerKilled},
	}
}

// largeService is a Service with many endpoints, all of them addresses of one
// pod, which shows which of them answered.
type largeService struct {
	name    string
	slices  [][]string                   // the addresses they have initially
	objects []*discoveryv1.EndpointSlice // as they were last written
	next    atomic.Int64

	mu      sync.Mutex // guards what follows
	removed map[string]time.Time
	latest  time.Duration // from an endpoint's removal to the last new connection to it
}

// check looks at a new connection: none may go to an address that has been gone
// for long.
func (s *largeService) check(begun time.Time, server string) error {
	if !strings.HasPrefix(server, "10.250.") {
		return fmt.Errorf("%s answers, which never was an endpoint", server)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	removed, ok := s.removed[server]
	if !ok {
		return nil
	}
	after := begun.Sub(removed)
	s.latest = max(s.latest, after)
	if after > goneFor {
		return fmt.Errorf("%s answers, which was removed %.2f s before the connection was begun", server, after.Seconds())
	}
	return nil
}

// mostStale is the longest time from an endpoint's removal to a new connection to it.
func (s *largeService) mostStale() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// makeLarge makes Services of 500, 100 and 10 endpoints and a pod on the second
// node that answers at all their addresses.
func (w *world) makeLarge() error {
	if !w.options.large {
		return nil
	}
	nodes := w.cluster.Nodes()
	pod, err := nodes[1].RunPod(w.ctx, cluster.PodSpec{Name: "large"})
	if err != nil {
		return err
	}
	if _, err := pod.Exec(w.ctx, "ip", "route", "add", "local", "10.250.0.0/16", "dev", "lo"); err != nil {
		return err
	}
	for _, node := range nodes {
		via := nodes[1].Address()
		if node == nodes[1] {
			via = pod.IP()
		}
		if _, err := node.Exec(w.ctx, "ip", "route", "add", "10.250.0.0/16", "via", via); err != nil {
			return err
		}
	}
	if _, err := pod.Start(cluster.Command{Name: "echo-large", Path: filepath.Join(w.cluster.Dir(), "echo"), Args: []string{fmt.Sprintf("0.0.0.0:%d/tcp", largePort)}}); err != nil {
		return err
	}
	for i, size := range []int{500, 100, 10} {
		s := &largeService{name: fmt.Sprintf("large-%d", size), removed: map[string]time.Time{}}
		var all []string
		for j := range size {
			all = append(all, largeAddress(i, j))
		}
		s.next.Store(int64(size))
		s.slices = slices.Collect(slices.Chunk(all, perSlice))
		if s.objects, err = w.makeByHand(s.name, largePort, s.slices); err != nil {
			return err
		}
		service := &corev1.Service{}
		if err := w.cluster.Client().Get(w.ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: s.name}, service); err != nil {
			return err
		}
		for _, node := range nodes {
			for _, from := range []*cluster.Place{visitor(node).Place, node.Place} {
				w.targets = append(w.targets, load.Target{Name: s.name, From: from, Via: node.Name(), Network: "tcp",
					Address: net.JoinHostPort(service.Spec.ClusterIP, "80"), Check: s.check})
			}
		}
		w.large = append(w.large, s)
	}
	return nil
}

// largeAddress is one of the addresses of a large Service.
func largeAddress(service, n int) string {
	return fmt.Sprintf("10.250.%d.%d", service*64+n/250, n%250+1)
}

// endpointChanges replaces endpoints, each by another one, at a steady pace.
func endpointChanges(r *run) {
	const changes, within, writers = 1000, 10 * time.Second, 7
	start := time.Now()
	var next atomic.Int64
	var running sync.WaitGroup
	errs := make(chan error, writers)
	// Each slice has one writer, so that no two writes conflict.
	owner := func(service, slice int) int { return (service*5 + slice) % writers }
	for writer := range writers {
		running.Go(func() {
			var mine []func(context.Context) error
			for i, s := range r.large {
				for j := range s.slices {
					if owner(i, j) == writer {
						mine = append(mine, func(ctx context.Context) error { return r.replace(ctx, i, j, int(next.Load())) })
					}
				}
			}
			for i := 0; len(mine) > 0; i++ {
				n := next.Add(together) - together
				if n >= changes {
					return
				}
				r.pass(time.Until(start.Add(time.Duration(n) * within / changes)))
				if err := mine[i%len(mine)](r.ctx); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	running.Wait()
	took := time.Since(start)
	select {
	case err := <-errs:
		r.Fatal(err)
	default:
	}
	r.remark("%d changes in %.1f s", changes, took.Seconds())
	if took > within*6/5 {
		r.Errorf("%d endpoint changes took %.1f s, want %s: this proves too little", changes, took.Seconds(), within)
	}
	r.pass(goneFor + time.Second) // the last ones, too, must not be connected to
	latest := time.Duration(0)
	for _, s := range r.large {
		latest = max(latest, s.mostStale())
		r.must(r.restore(s))
	}
	r.remark("the last connection to a removed endpoint begun %.2f s after its removal", latest.Seconds())
}

// replace replaces some endpoints of a slice by addresses that were not used
// for long.
func (r *run) replace(ctx context.Context, service, slice, n int) error {
	s := r.large[service]
	object := s.objects[slice]
	var old []string
	for i := range together {
		endpoint := &object.Endpoints[(n+i)%len(object.Endpoints)]
		old = append(old, endpoint.Addresses[0])
		endpoint.Addresses = []string{largeAddress(service, int(s.next.Add(1)-1))}
	}
	if err := r.cluster.Client().Update(ctx, object); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, address := range old {
		s.removed[address] = time.Now()
	}
	return nil
}

// restore gives a Service the endpoints of the beginning.
func (r *run) restore(s *largeService) error {
	for j, addresses := range s.slices {
		s.mu.Lock()
		for _, a := range addresses {
			delete(s.removed, a)
		}
		s.mu.Unlock()
		object := s.objects[j]
		former := object.Endpoints
		object.Endpoints = r.endpoints(addresses)
		if err := r.cluster.Client().Update(r.ctx, object); err != nil {
			return err
		}
		s.mu.Lock()
		for _, e := range former {
			if !slices.Contains(addresses, e.Addresses[0]) {
				s.removed[e.Addresses[0]] = time.Now()
			}
		}
		s.mu.Unlock()
	}
	return nil
}

// controllerKilled kills the controller that leads. The other one takes over.
func controllerKilled(r *run) {
	stop := r.change(100 * time.Millisecond)
	r.pass(2*time.Second + time.Duration(r.random.IntN(1000))*time.Millisecond)
	r.must(r.controllers[0].Kill())
	r.ended = time.Now()
	r.controllers = r.controllers[1:]
	r.pass(3 * time.Second)
	stop()
	r.must(r.startController()) // a standby again
	r.remark("repair counts from the kill")
}
