package tenants

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

const (
	// victim is the namespace of the second tenant.
	victim = "victim"
	// pace is how many connections to Services that exist are begun each second.
	pace = 20
	// tryPause is between two tries to connect to a new Service.
	tryPause = 50 * time.Millisecond
	// explainAfter is when the log states what a Service lacks that does not answer.
	explainAfter = 3 * time.Second
	// probePause is between two probes of one port.
	probePause = 100 * time.Millisecond
)

// clusterIP is that of the second tenant's Service of a number.
func clusterIP(n int) string { return fmt.Sprintf("10.96.%d.%d", 200+n/250, 1+n%250) }

// victimIPs are the cluster IPs of Services that the second tenant will create next. They change seldom:
// what changes all the time is another attack.
func (r *rig) victimIPs() []string {
	const ahead, same = 400, 100
	next := int(r.created.Load()) / same * same
	var out []string
	for i := range ahead {
		out = append(out, clusterIP(next+i))
	}
	return out
}

// useNew creates a Service of the second tenant and returns how long it took until it answered
// by the rules of each node. Every other Service has traffic policy Local, and answers on the
// node of its pod.
func (r *rig) useNew() ([]time.Duration, error) {
	n := int(r.created.Add(1)) - 1
	service, endpoints := cluster.WithoutSelector(victim, fmt.Sprintf("shop-%d", n), r.server.IP())
	service.Spec.ClusterIP = clusterIP(n)
	endpoints.Endpoints[0].NodeName = new(r.server.Node().Name())
	visitors := r.visitors
	if n%2 == 1 {
		service.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		visitors = visitors[1:]
	}
	if err := r.cluster.Client().Create(r.Context(), service); apierrors.IsInvalid(err) {
		return r.useNew() // the API server has given the address to a Service of the attacker
	} else if err != nil {
		return nil, err
	}
	begin := time.Now() // both are there only now
	if err := r.cluster.Client().Create(r.Context(), endpoints); err != nil {
		return nil, err
	}
	waits, errs := make([]time.Duration, len(visitors)), make([]error, len(visitors))
	var group sync.WaitGroup
	for i, visitor := range visitors {
		group.Go(func() {
			answered := make(chan struct{})
			defer close(answered)
			group.Go(func() {
				select {
				case <-answered:
				case <-time.After(explainAfter):
					r.Logf("%s has waited for shop-%d for %s: %s", visitor.Name(), n, explainAfter, r.whereMissing(service, visitor.Node()))
				}
			})
			if err := r.reach(visitor, clusterIP(n)+":80"); err != nil {
				errs[i] = fmt.Errorf("%w: %s", err, r.whereMissing(service, visitor.Node()))
			}
			waits[i] = time.Since(begin)
		})
	}
	group.Wait()
	return waits, errors.Join(errs...)
}

// reach connects until the second tenant's server answers. A packet that comes before the rules
// is lost, and TCP repeats it only after a second: the next try does not wait for that.
func (r *rig) reach(from *cluster.Pod, address string) error {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	const most = 100 // under way
	answers, slots := make(chan error, most), make(chan struct{}, most)
	try := func() {
		ctx, cancel := context.WithTimeout(r.Context(), load.Patience)
		defer cancel()
		answer, err := from.Dial(ctx, "tcp", address)
		if err == nil && answer.Server != r.server.Name() {
			err = fmt.Errorf("%s answers at %s", answer.Server, address)
			r.steal(err)
		}
		<-slots
		select {
		case answers <- err:
		default: // reach has returned
		}
	}
	tick := time.NewTicker(tryPause)
	defer tick.Stop()
	var last error
	for {
		select {
		case slots <- struct{}{}:
			r.tries.Go(try)
		default:
		}
		select {
		case last = <-answers:
			if last == nil {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer within %s: %w", address, patience, last)
		case <-tick.C:
			continue
		}
		select { // a failed try is not repeated at once
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// whereMissing reports which program has not done its part for a Service that does not answer.
func (r *rig) whereMissing(service *corev1.Service, node *cluster.Node) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), patience)
	defer cancel()
	rules := &v1alpha1.ServiceProxyRules{}
	if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: v1alpha1.ServiceProxyRulesName(service.Namespace, service.Name)}, rules); err != nil {
		return fmt.Sprintf("the controller has not rendered it: %v", err)
	}
	own := &v1alpha1.NodeProxyRules{}
	if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, own); err != nil {
		return err.Error()
	}
	saved, err := node.Exec(ctx, "iptables-save")
	var lines []string
	for line := range strings.Lines(saved) {
		if strings.Contains(line, service.Spec.ClusterIP+"/32") || strings.Contains(line, service.Namespace+"/"+service.Name+":") {
			lines = append(lines, line)
		}
	}
	return fmt.Sprintf("rendered: %+v; local endpoints in the rules of %s (generation %d): %t; rules: %q, %v; the status of the node: %+v",
		rules.Spec, node.Name(), own.Generation, carries(own, service.Namespace, service.Name), lines, err, own.Status)
}

// carries reports whether the rules of a node have local endpoints of a Service.
func carries(rules *v1alpha1.NodeProxyRules, namespace, name string) bool {
	return slices.ContainsFunc(rules.Spec.LocalEndpoints, func(s v1alpha1.ServiceLocalEndpoints) bool {
		return s.Namespace == namespace && s.Name == name
	})
}

// steal ends the run: what an endpoint of the attacker answers to the second tenant is as final as a
// lost connection.
func (r *rig) steal(how error) {
	if r.stolen.CompareAndSwap(false, true) {
		load.Lost(r, "a connection of the second tenant was stolen: %v", how)
		r.abort()
	}
}

// targets are Services of the second tenant that exist.
func (r *rig) targets() []load.Target {
	r.Helper()
	if r.created.Load() == 0 {
		if _, err := r.useNew(); err != nil {
			r.Fatal(err)
		}
	}
	var out []load.Target
	for i, visitor := range r.visitors {
		out = append(out, load.Target{
			Name: "a Service of the second tenant", From: visitor.Place, Via: r.cluster.Node(i).Name(),
			Network: "tcp", Address: clusterIP(0) + ":80", Servers: []string{r.server.Name()},
		})
	}
	return out
}

// controllerHealth is where the controller answers, as config/manager has it.
const controllerHealth = "127.0.0.1:19258"

// controlAddress is where a server answers on each node that has nothing to do with nodeproxy.
const controlAddress = "127.0.0.1:18080"

// startControl starts these servers.
func (r *rig) startControl(ctx context.Context) error {
	for _, node := range r.cluster.Nodes() {
		command := cluster.Command{Name: "control", Path: filepath.Join(r.cluster.Dir(), "echo"), Args: []string{controlAddress + "/http"}}
		if _, err := node.Start(command); err != nil {
			return err
		}
		err := install.Until(ctx, patience, func(ctx context.Context) error {
			_, err := node.Get(ctx, "http://"+controlAddress)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// balancerPort is the health-check node port of a Service of the second tenant.
const balancerPort = 32255

// balance creates this Service, whose pod is on the second node.
func (r *rig) balance(ctx context.Context) error {
	service, endpoints := cluster.WithoutSelector(victim, "balanced", r.server.IP())
	service.Spec.Type, service.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	service.Spec.HealthCheckNodePort = balancerPort
	endpoints.Endpoints[0].NodeName = new(r.server.Node().Name())
	if err := r.cluster.Client().Create(ctx, service); err != nil {
		return err
	}
	return r.cluster.Client().Create(ctx, endpoints)
}

// balanced returns nil once that port answers that there is an endpoint.
func (r *rig) balanced(ctx context.Context) error {
	_, err := r.server.Node().Get(ctx, "http://"+r.server.Node().AddressPort(balancerPort))
	return err
}

// probe asks the ports of agents and controller, and the control servers, until the context ends. The
// returned function, which may be called once the group has ended, returns how long the answers took: of a
// late one as if each probe that it kept from being sent had waited for it, too.
func (r *rig) probe(ctx context.Context, group *sync.WaitGroup) func() (probes, control []time.Duration) {
	var mu sync.Mutex
	var probes, control []time.Duration
	each := func(from *cluster.Place, url string, times *[]time.Duration) {
		asks := &http.Client{Transport: from.Transport(), Timeout: patience}
		group.Go(func() {
			tick := time.NewTicker(probePause)
			defer tick.Stop()
			for ctx.Err() == nil {
				begin := time.Now()
				err := ask(asks, url)
				mu.Lock()
				for took := time.Since(begin); took > 0; took -= probePause {
					*times = append(*times, took)
				}
				mu.Unlock()
				if err != nil {
					r.Errorf("%s on %s: %v", url, from.Name(), err)
					return
				}
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		})
	}
	each(r.cluster.ControlPlane(), "http://"+controllerHealth+"/healthz", &probes)
	for i, node := range r.cluster.Nodes() {
		each(node.Place, "http://"+controlAddress, &control)
		if i > 0 || r.occupant == nil { // else the attacker has the agent's ports
			each(node.Place, "http://127.0.0.1:19256/livez", &probes)
			each(node.Place, "http://"+node.AddressPort(healthPort)+"/healthz", &probes)
		}
		if node == r.server.Node() {
			each(node.Place, "http://"+node.AddressPort(balancerPort), &probes)
		}
	}
	return func() (_, _ []time.Duration) { return probes, control }
}

func ask(with *http.Client, url string) error {
	response, err := with.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("%s: %s", response.Status, body))
	}
	return err
}

// forgetPeak has the kernel forget a process's largest size so far.
func forgetPeak(pid int) error {
	return os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "clear_refs"), []byte("5"), 0)
}
