package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// compareLoad measures what connections cost by each proxy. All run at the same time, each alone on its node, and
// are measured in turn: a busy moment of the machine concerns all.
func (r *sizeRun) compareLoad(ctx context.Context) (_ []result, err error) {
	allowed, err := allowDescriptors(perConnection*idleConnections + otherDescriptors)
	if err != nil {
		return nil, err
	}
	idle := min(idleConnections, (int(allowed)-otherDescriptors)/perConnection) //nolint:gosec // small
	directory, err := programs(r.cluster, nfTables)
	if err != nil {
		return nil, err
	}
	s := &servers{sizeRun: r, directory: directory}
	defer func() { err = errors.Join(err, s.stop()) }()
	var all []*loaded
	for _, name := range r.proxies {
		r.progress.line("%s: %d idle connections", name, idle)
		l, err := s.start(ctx, name)
		if err == nil {
			err = l.idle(ctx, idle)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, l)
	}
	for round := range rounds {
		for _, l := range all {
			r.progress.line("%s: connections, bytes and requests, %d of %d", l.name, round+1, rounds)
			if err := l.round(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w; %s", l.name, err, l.process.Tail())
			}
		}
	}
	one := result{Services: r.world.services, Endpoints: r.world.endpoints, Mode: r.mode, Variant: string(nfTables)}
	for _, l := range all {
		one.set(l.name, &measurements{Load: l.measurements()})
	}
	return []result{one}, nil
}

// servers are the programs that compareLoad has started.
type servers struct {
	*sizeRun
	directory  string // of iptables
	controller *cluster.Process
	list       []*cluster.Process
}

// start starts a proxy on a new node, and waits until it serves all Services.
func (s *servers) start(ctx context.Context, name string) (*loaded, error) {
	node, err := s.addProxyNode(ctx, s.directory)
	if err != nil {
		return nil, err
	}
	// Flows of connections that have ended must not fill the kernel's table.
	if err := node.Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", []byte("5"), 0)
	}); err != nil {
		return nil, err
	}
	// Its connections are not masqueraded, unlike those of the node itself.
	client, err := node.RunPod(ctx, cluster.PodSpec{Name: "client-of-" + strings.ToLower(name)})
	if err != nil {
		return nil, err
	}
	pods, err := netip.ParsePrefix(node.PodCIDR())
	if err != nil {
		return nil, err
	}
	if err := s.cluster.Outside().RouteTo(pods, netip.MustParseAddr(node.Address())); err != nil {
		return nil, err
	}
	proxy := kubeProxy(s.cluster, s.kubeProxy, s.mode)
	if name != kubeProxyName {
		proxy = nodeproxy(s.nodeproxy)
		if err := s.render(ctx, node, name); err != nil {
			return nil, err
		}
	}
	command, err := proxy.command(node)
	if err != nil {
		return nil, err
	}
	if name == kubeProxyName {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		command.Name, command.Args = name, append([]string{keepLimits, command.Path}, command.Args...)
		command.Path = self
	}
	command.Env = append(command.Env, environment(s.cluster, s.directory)...)
	process, err := node.Start(command)
	if err != nil {
		return nil, err
	}
	s.list = append(s.list, process)
	err = install.Until(ctx, s.patience, func(context.Context) error {
		if err := install.Running(process); err != nil {
			return err
		}
		return client.Do(func() error {
			for i := range s.world.services {
				if _, err := askOnce(s.world.service(i), connectPatience); err != nil {
					return fmt.Errorf("no answer by %s: %w", serviceName(i), err)
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for all Services: %w; %s", err, process.Tail())
	}
	return &loaded{name: name, client: client.Place, process: process, service: s.world.service(0)}, nil
}

// render has the controller render what a node's agent needs, for mode NFTables if that is its name.
func (s *servers) render(ctx context.Context, node *cluster.Node, name string) (err error) {
	if s.controller == nil {
		if s.controller, err = s.startController(ctx, node, &controllerMeasurements{}); err != nil {
			return err
		}
	}
	mode := s.mode
	if name == kernelName {
		mode = v1alpha1.ModeNFTables
		policy := &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(name)}}
		policy.Spec.NodeSelector.MatchLabels = map[string]string{corev1.LabelHostname: node.Name()}
		policy.Spec.Settings.Mode = &mode
		if err := s.cluster.Client().Create(ctx, policy); err != nil {
			return err
		}
	}
	return install.Until(ctx, time.Minute, func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := s.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		if got := v1alpha1.CompleteSettings(&rules.Spec.Settings).Mode; *got != mode {
			return fmt.Errorf("the mode of %s is %s", node.Name(), *got)
		}
		return nil
	})
}

func (s *servers) stop() error {
	var errs []error
	for _, process := range append(s.list, s.controller) {
		if process == nil {
			continue
		}
		errs = append(errs, s.saveLog(process, filepath.Base(process.Log())), process.Stop())
	}
	return errors.Join(errs...)
}
