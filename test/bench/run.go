package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/registry"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
)

// sizeRun measures one number of Services in one cluster.
type sizeRun struct {
	options
	cluster   *cluster.Cluster
	kubeProxy string // path of the program
	nodeproxy *install.Nodeproxy
	world     *world
	bare      *cluster.Node // without a proxy
	seen      *sightings
	progress  *progress
}

func measureSize(ctx context.Context, o options, n size, progress *progress) (results []result, err error) {
	program, err := kubeProxyProgram(ctx, o.mode)
	if err != nil {
		return nil, err
	}
	scheme, err := install.Scheme()
	if err != nil {
		return nil, err
	}
	progress.line("%s: starting a control plane and creating the objects", n)
	c, err := cluster.Start(ctx, cluster.Options{
		Scheme: scheme, Progress: os.Stderr, Programs: ipvskernel.Programs(), NoControllers: true,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); err = errors.Join(err, c.Stop()) }()
	r := &sizeRun{options: o, cluster: c, kubeProxy: program, progress: progress,
		nodeproxy: &install.Nodeproxy{Cluster: c, Bin: o.bin, Config: o.config},
		world:     &world{client: c.Client(), store: registry.NewStore(c), services: n.services, endpoints: n.endpoints, withEndpoints: o.mode == v1alpha1.ModeUserspace}}
	answer := answerAddress
	if o.mode == v1alpha1.ModeUserspace {
		answer = func(conn net.Conn) { go answerRequests(conn) }
	}
	if err := errors.Join(answerAll(ctx, c, answer), r.nodeproxy.Prepare(ctx)); err != nil {
		return nil, err
	}
	if err := r.world.create(ctx); err != nil {
		return nil, fmt.Errorf("creating the objects: %w", err)
	}
	if o.mode == v1alpha1.ModeUserspace {
		return r.compareLoad(ctx)
	}
	if r.bare, err = r.addNode(ctx); err != nil {
		return nil, err
	}
	if r.seen, err = watchProbe(ctx, c); err != nil {
		return nil, err
	}
	for _, v := range o.variants {
		one := result{Services: n.services, Endpoints: n.endpoints, Mode: o.mode, Variant: string(v)}
		for _, name := range o.proxies {
			measured, err := r.measure(ctx, name, v)
			if err != nil {
				if one.KubeProxy != nil || one.Nodeproxy != nil {
					results = append(results, one)
				}
				return results, fmt.Errorf("%s, %s, mode %s, iptables %s: %w", name, n, o.mode, v, err)
			}
			one.set(name, measured)
		}
		results = append(results, one)
	}
	return results, nil
}

// addNode adds a node that reaches all endpoints.
func (r *sizeRun) addNode(ctx context.Context) (*cluster.Node, error) {
	node, err := r.cluster.AddNode(ctx)
	if err != nil {
		return nil, err
	}
	return node, routeToEndpoints(ctx, node)
}

// addProxyNode adds a node for a proxy that uses the iptables of a directory.
func (r *sizeRun) addProxyNode(ctx context.Context, directory string) (*cluster.Node, error) {
	node, err := r.addNode(ctx)
	if err != nil {
		return nil, err
	}
	// As a kubelet leaves it, so that a proxy can see which variant is in use.
	if _, err := node.Exec(ctx, filepath.Join(directory, "iptables"), "-w", "5", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"); err != nil {
		return nil, err
	}
	// It loads connection tracking, whose settings kube-proxy takes for granted.
	_, err = node.Exec(ctx, filepath.Join(directory, "iptables"), "-w", "5", "-t", "nat", "-S")
	return node, err
}

// measure measures one proxy on a new node.
func (r *sizeRun) measure(ctx context.Context, name string, v variant) (_ *measurements, err error) {
	directory, err := programs(r.cluster, v)
	if err != nil {
		return nil, err
	}
	node, err := r.addProxyNode(ctx, directory)
	if err != nil {
		return nil, err
	}
	s := &subject{options: r.options, proxy: kubeProxy(r.cluster, r.kubeProxy, r.mode), world: r.world, progress: r.progress, node: node, bare: r.bare, measurements: &measurements{}}
	var controller *cluster.Process
	if name == nodeproxyName {
		s.proxy = nodeproxy(r.nodeproxy)
		s.measurements.Controller = &controllerMeasurements{}
		if controller, err = r.startController(ctx, node, s.measurements.Controller); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, controller.Stop()) }()
	}
	command, err := s.command(node)
	if err != nil {
		return nil, err
	}
	command.Env = append(command.Env, environment(r.cluster, directory)...)
	err = r.steps(ctx, s, command, controller, directory)
	err = errors.Join(err, r.saveLog(s.process, fmt.Sprintf("%s-%dx%d-%s.log", name, r.world.services, r.world.endpoints, v)))
	if s.process != nil && s.measurements.GivenUp == 0 {
		err = errors.Join(err, s.process.Stop())
	}
	return s.measurements, err
}

func (r *sizeRun) steps(ctx context.Context, s *subject, command cluster.Command, controller *cluster.Process, directory string) error {
	how := filepath.Base(directory)
	if r.mode != v1alpha1.ModeIPTables {
		how = string(r.mode)
	}
	at := fmt.Sprintf("%s, %dx%d", how, r.world.services, r.world.endpoints)
	r.progress.line("%s: %s: first full sync", at, s.name)
	empty, err := kernelMemory()
	if err != nil {
		return err
	}
	err = s.firstSync(ctx, command)
	if errors.Is(err, errLate) && s.name == kubeProxyName {
		r.progress.line("%s: %s: no first full sync within %s; nothing more is measured of it", at, s.name, s.patience)
		s.measurements.GivenUp = s.patience.Seconds()
		return s.kill(ctx)
	}
	if err != nil {
		return err
	}
	r.progress.line("%s: %s: first full sync took %.1f s; single changes", at, s.name, s.measurements.FirstSync)
	if _, err := s.settle(ctx); err != nil {
		return err
	}
	full, err := kernelMemory()
	if err != nil {
		return err
	}
	s.measurements.KernelMemory = max(0, full-empty)
	if err := s.check(ctx, directory); err != nil {
		return err
	}
	if err := s.singleChanges(ctx); err != nil {
		return err
	}
	r.progress.line("%s: %s: first connections on %d new endpoints", at, s.name, s.moves)
	if err := s.firstConnections(ctx, r.seen); err != nil {
		return err
	}
	if err := s.connectTimes(ctx); err != nil {
		return err
	}
	r.progress.line("%s: %s: %s of %d changes and %d connections a second", at, s.name, r.options.churn, s.changes, s.connections)
	if err := s.churn(ctx, controller); err != nil {
		return err
	}
	return s.check(ctx, directory)
}

// startController starts the controller and waits until it has rendered
// everything, as it would have long before a node starts.
func (r *sizeRun) startController(ctx context.Context, node *cluster.Node, f *controllerMeasurements) (*cluster.Process, error) {
	err := r.nodeproxy.Enable(ctx)
	if client.IgnoreAlreadyExists(err) != nil {
		return nil, err
	}
	first := err == nil
	if first && r.mode != v1alpha1.ModeIPTables {
		patch := fmt.Sprintf(`{"spec":{"settings":{"mode":%q}}}`, r.mode)
		if _, err := r.cluster.Kubectl(ctx, "patch", "nodeproxy", v1alpha1.NodeProxyName, "--type", "merge", "-p", patch); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	controller, err := r.nodeproxy.StartController()
	if err != nil {
		return nil, err
	}
	limit := 2*time.Minute + time.Duration(r.world.services)*20*time.Millisecond
	err = install.Until(ctx, limit, func(ctx context.Context) error {
		if err := install.Running(controller); err != nil {
			return err
		}
		return r.rendered(ctx, node)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for the controller to render everything: %w; %s", err, controller.Tail()), controller.Stop())
	}
	if first {
		f.FirstRender = time.Since(start).Seconds()
	}
	return controller, nil
}

func (r *sizeRun) rendered(ctx context.Context, node *cluster.Node) error {
	if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, &v1alpha1.NodeProxyRules{}); err != nil {
		return err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ServiceProxyRulesList"))
	if err := r.cluster.Client().List(ctx, list, client.Limit(1)); err != nil {
		return err
	}
	have := int64(len(list.Items))
	if list.RemainingItemCount != nil {
		have += *list.RemainingItemCount
	}
	// All Services, the probe and that of the API server.
	if want := int64(r.world.services + 2); have < want {
		return fmt.Errorf("%d of %d Services are rendered", have, want)
	}
	return nil
}
