package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
)

// sizeRun measures one number of Services in one cluster.
type sizeRun struct {
	options
	cluster   *cluster.Cluster
	nodeproxy *install.Nodeproxy
	world     *world
	say       *progress
}

func measureSize(ctx context.Context, o options, size int, say *progress) (results []result, err error) {
	if _, err := binaries.Ensure(ctx, os.Stderr, append(binaries.ControlPlane(), binaries.KubeProxy)...); err != nil {
		return nil, err
	}
	scheme, err := install.Scheme()
	if err != nil {
		return nil, err
	}
	say.line("%d Services: starting a control plane and creating the objects", size)
	c, err := cluster.Start(ctx, cluster.Options{
		Scheme: scheme, Progress: os.Stderr, Programs: ipvskernel.Programs(), NoControllers: o.mode == v1alpha1.ModeIPVS, // it has one processor
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); err = errors.Join(err, c.Stop()) }()
	r := &sizeRun{options: o, cluster: c, say: say,
		nodeproxy: &install.Nodeproxy{Cluster: c, Bin: o.bin, Config: o.config},
		world:     &world{client: c.Client(), services: size, endpoints: o.endpoints}}
	if err := errors.Join(answerAll(ctx, c), r.nodeproxy.Prepare(ctx)); err != nil {
		return nil, err
	}
	if err := r.world.create(ctx); err != nil {
		return nil, fmt.Errorf("creating the objects: %w", err)
	}
	for _, v := range o.variants {
		one := result{Services: size, Endpoints: o.endpoints, Mode: o.mode, Variant: string(v)}
		for _, name := range o.proxies {
			measured, err := r.measure(ctx, name, v)
			if err != nil {
				if one.KubeProxy != nil || one.Nodeproxy != nil {
					results = append(results, one)
				}
				return results, fmt.Errorf("%s, %d Services, mode %s, iptables %s: %w", name, size, o.mode, v, err)
			}
			one.set(name, measured)
		}
		results = append(results, one)
	}
	return results, nil
}

// measure measures one proxy on a new node.
func (r *sizeRun) measure(ctx context.Context, name string, v variant) (_ *figures, err error) {
	directory, err := programs(r.cluster, v)
	if err != nil {
		return nil, err
	}
	node, err := r.cluster.AddNode(ctx)
	if err != nil {
		return nil, err
	}
	if err := routeToEndpoints(ctx, node); err != nil {
		return nil, err
	}
	// As a kubelet leaves it, so that a proxy can see which variant is in use.
	if _, err := node.Exec(ctx, filepath.Join(directory, "iptables"), "-w", "5", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"); err != nil {
		return nil, err
	}
	// It loads connection tracking, whose settings kube-proxy takes for granted.
	if _, err := node.Exec(ctx, filepath.Join(directory, "iptables"), "-w", "5", "-t", "nat", "-S"); err != nil {
		return nil, err
	}
	s := &subject{options: r.options, proxy: kubeProxy(r.cluster, r.mode), world: r.world, node: node, figures: &figures{}}
	var controller *cluster.Process
	if name == nodeproxyName {
		s.proxy = nodeproxy(r.nodeproxy)
		s.figures.Controller = &controllerFigures{}
		if controller, err = r.startController(ctx, node, s.figures.Controller); err != nil {
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
	if s.process != nil {
		err = errors.Join(err, s.saveLog(fmt.Sprintf("%s-%d-%s", name, r.world.services, v)), s.process.Stop())
	}
	return s.figures, err
}

func (r *sizeRun) steps(ctx context.Context, s *subject, command cluster.Command, controller *cluster.Process, directory string) error {
	at := fmt.Sprintf("%s, %d Services", filepath.Base(directory), r.world.services)
	r.say.line("%s: %s: first full sync", at, s.name)
	if err := s.firstSync(ctx, command); err != nil {
		return err
	}
	r.say.line("%s: %s: first full sync took %.1f s; single changes", at, s.name, s.figures.FirstSync)
	if err := s.check(ctx, directory); err != nil {
		return err
	}
	if err := s.singleChanges(ctx); err != nil {
		return err
	}
	r.say.line("%s: %s: first connections on %d new endpoints", at, s.name, s.moves)
	if err := s.firstConnections(ctx); err != nil {
		return err
	}
	if err := s.connectTimes(ctx); err != nil {
		return err
	}
	r.say.line("%s: %s: %s of %d changes a second", at, s.name, r.options.churn, changesPerSecond)
	if err := s.churn(ctx, controller); err != nil {
		return err
	}
	return s.check(ctx, directory)
}

// startController starts the controller and waits until it has rendered
// everything, as it would have long before a node starts.
func (r *sizeRun) startController(ctx context.Context, node *cluster.Node, f *controllerFigures) (*cluster.Process, error) {
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
