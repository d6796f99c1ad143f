package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// podsThatGo checks what connections see of pods that end and of new ones.
func (d *demo) podsThatGo(ctx context.Context) error {
	d.report.section("Pods come and go")
	address, leaving := d.clusterAddress("cluster-ip"), d.web[2]
	var held *cluster.Conn
	d.report.check("web-3 terminates: new connections go elsewhere", func() (string, error) {
		var err error
		if held, err = connectionTo(ctx, d.visitor.Place, address, leaving.Name()); err != nil {
			return "", err
		}
		begin := time.Now()
		if err := leaving.Terminate(ctx); err != nil {
			return "", err
		}
		if err := d.untilOnlyTo(ctx, address, "web-1", "web-2"); err != nil {
			return "", err
		}
		return fmt.Sprintf("within %s", duration(time.Since(begin))), nil
	})
	d.report.check("a connection that was open to it goes on", func() (string, error) {
		if held == nil {
			return "", errors.New("there was none")
		}
		defer held.Close()
		_, err := held.Ask(ctx)
		return "", err
	})
	d.report.check("web-3 is gone: none of 60 connections fails", func() (string, error) {
		if err := leaving.Delete(ctx); err != nil {
			return "", err
		}
		t, err := onlyTo(ctx, d.visitor.Place, address, 60, "web-1", "web-2")
		return t.String(), err
	})
	d.report.check("web-4 starts on node-3: it gets connections", func() (string, error) {
		pod, err := d.runWeb(ctx, 2, "web-4")
		if err != nil {
			return "", err
		}
		d.web[2] = pod
		return "", soon(ctx, d.visitor.Place, "tcp", address, "web-4")
	})
	d.lastPodGoes(ctx)
	return nil
}

// lastPodGoes checks a Service that loses its only endpoint and gets a new one.
func (d *demo) lastPodGoes(ctx context.Context) {
	address := d.clusterAddress("single")
	d.report.check("the only pod of a Service terminates: it still answers", func() (string, error) {
		if err := d.single.Terminate(ctx); err != nil {
			return "", err
		}
		// The change is done when the object reports it; then connect.
		err := install.Until(ctx, programmingLimit, func(ctx context.Context) error { return d.singleIsTerminating(ctx) })
		if err != nil {
			return "", err
		}
		_, err = onlyTo(ctx, d.visitor.Place, address, 20, "single")
		return "", err
	})
	d.report.check("it is gone: connections are rejected at once", func() (string, error) {
		if err := d.single.Delete(ctx); err != nil {
			return "", err
		}
		return "", install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			return rejected(ctx, d.visitor.Place, "tcp", address)
		})
	})
	d.report.check("another one starts: the Service answers again", func() (string, error) {
		var err error
		if d.single, err = d.cluster.Node(1).RunPod(ctx, d.singleSpec()); err != nil {
			return "", err
		}
		return "", soon(ctx, d.visitor.Place, "tcp", address, "single")
	})
}

// singleIsTerminating returns nil once the rendered object has the endpoint of
// the Service "single" as terminating.
func (d *demo) singleIsTerminating(ctx context.Context) error {
	rules := &v1alpha1.ServiceProxyRules{}
	if err := d.cluster.Client().Get(ctx, client.ObjectKey{Name: namespace + ".single"}, rules); err != nil {
		return err
	}
	for _, port := range rules.Spec.EndpointsByPort() {
		for _, group := range port {
			if group.State == v1alpha1.EndpointTerminating {
				return nil
			}
		}
	}
	return errors.New("no endpoint is terminating in ServiceProxyRules " + rules.Name)
}

// connectionTo opens connections until one goes to the desired server, and keeps
// that one.
func connectionTo(ctx context.Context, from *cluster.Place, address, server string) (*cluster.Conn, error) {
	for range 100 {
		conn, err := from.Connect(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		answer, err := conn.Ask(ctx)
		if err == nil && answer.Server == server {
			return conn, nil
		}
		if err := errors.Join(err, conn.Close()); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("none of 100 connections to %s went to %s", address, server)
}

// untilOnlyTo waits until 30 connections in a row go to the given servers only.
func (d *demo) untilOnlyTo(ctx context.Context, address string, servers ...string) error {
	return install.Until(ctx, programmingLimit, func(ctx context.Context) error {
		_, err := onlyTo(ctx, d.visitor.Place, address, 30, servers...)
		return err
	})
}

// serviceDeleted checks that a Service's addresses end with it.
func (d *demo) serviceDeleted(ctx context.Context) error {
	d.report.section("A Service is deleted")
	outside := d.cluster.Outside()
	addresses := []target{
		{d.visitor.Place, d.clusterAddress("short-lived")},
		{outside, d.cluster.Node(0).AddressPort(30082)},
		{outside, at(shortLivedIP, 80)},
	}
	d.report.check("before, its three addresses answer", func() (string, error) {
		for _, a := range addresses {
			if err := expect(ctx, a.from, "tcp", a.address); err != nil {
				return "", err
			}
		}
		return "", nil
	})
	d.report.check("kubectl delete service short-lived: none answers any more", func() (string, error) {
		if _, err := d.cluster.Kubectl(ctx, "delete", "service", "--namespace", namespace, "short-lived"); err != nil {
			return "", err
		}
		return "", allSilent(ctx, addresses)
	})
	d.report.check("its ServiceProxyRules are gone, the other Services answer", func() (string, error) {
		err := install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			return d.objectsMatchServices(ctx)
		})
		return "", errors.Join(err, expect(ctx, outside, "tcp", at(loadBalancerIP, 80)))
	})
	return nil
}

// objectsMatchServices returns nil when each Service has its ServiceProxyRules
// and there are no others.
func (d *demo) objectsMatchServices(ctx context.Context) error {
	var services corev1.ServiceList
	var rules v1alpha1.ServiceProxyRulesList
	if err := errors.Join(d.cluster.Client().List(ctx, &services), d.cluster.Client().List(ctx, &rules)); err != nil {
		return err
	}
	have := map[string]bool{}
	for _, r := range rules.Items {
		have[r.Name] = true
	}
	for _, s := range services.Items {
		name := s.Namespace + "." + s.Name
		if !have[name] {
			return fmt.Errorf("ServiceProxyRules %s is missing", name)
		}
		delete(have, name)
	}
	for name := range have {
		return fmt.Errorf("ServiceProxyRules %s exists without a Service", name)
	}
	return nil
}

// rulesObjectsDeleted checks that rules outlive their objects, with and without
// a controller that writes them again.
func (d *demo) rulesObjectsDeleted(ctx context.Context) error {
	d.report.section("All ServiceProxyRules are deleted by mistake")
	d.report.check("kubectl delete serviceproxyrules --all: no connection fails", func() (string, error) {
		stop := d.watchAll(ctx)
		before, err := d.deleteRulesObjects(ctx)
		if err == nil {
			err = install.Until(ctx, programmingLimit, func(ctx context.Context) error { return d.replaced(ctx, before) })
		}
		if err == nil {
			err = install.Until(ctx, programmingLimit, d.programmed)
		}
		made, watchErr := stop()
		return fmt.Sprintf("%d connections, %d objects are back", made, len(before)), errors.Join(err, watchErr)
	})
	var before []v1alpha1.ServiceProxyRules
	stop := d.watchAll(ctx)
	d.report.check("the same without a controller: the nodes retain their rules", func() (string, error) {
		err := d.controller.Stop()
		if err == nil {
			before, err = d.deleteRulesObjects(ctx)
		}
		if err == nil {
			err = install.Until(ctx, programmingLimit, func(ctx context.Context) error { return d.nodeproxy.Reported(ctx, v1alpha1.ReasonRetained) })
		}
		return "Programmed is True, reason Retained", err
	})
	d.report.check("the controller starts again: no connection has failed", func() (string, error) {
		var err error
		if d.controller, err = d.nodeproxy.StartController(); err == nil {
			err = install.Until(ctx, programmingLimit, func(ctx context.Context) error { return d.replaced(ctx, before) })
		}
		if err == nil {
			err = install.Until(ctx, programmingLimit, d.programmed)
		}
		made, watchErr := stop()
		return fmt.Sprintf("%d connections, %d objects are back", made, len(before)), errors.Join(err, watchErr)
	})
	return nil
}

// watchAll connects again and again from a pod and from outside, until it is
// stopped.
func (d *demo) watchAll(ctx context.Context) (stop func() (int, error)) {
	stopPod := watch(ctx, d.visitor.Place, d.clusterAddress("cluster-ip"))
	stopOutside := watch(ctx, d.cluster.Outside(), at(loadBalancerIP, 80))
	return func() (int, error) {
		fromPod, podErr := stopPod()
		fromOutside, outsideErr := stopOutside()
		return fromPod + fromOutside, errors.Join(podErr, outsideErr)
	}
}

// deleteRulesObjects deletes all ServiceProxyRules and returns what they were.
func (d *demo) deleteRulesObjects(ctx context.Context) ([]v1alpha1.ServiceProxyRules, error) {
	var before v1alpha1.ServiceProxyRulesList
	if err := d.cluster.Client().List(ctx, &before); err != nil {
		return nil, err
	}
	out, err := d.cluster.Kubectl(ctx, "delete", "serviceproxyrules", "--all")
	if err == nil && strings.Count(out, " deleted") != len(before.Items) {
		err = fmt.Errorf("kubectl deleted other than %d objects: %s", len(before.Items), out)
	}
	return before.Items, err
}

// replaced returns nil when all objects exist again, under other UIDs.
func (d *demo) replaced(ctx context.Context, before []v1alpha1.ServiceProxyRules) error {
	for _, old := range before {
		now := &v1alpha1.ServiceProxyRules{}
		if err := d.cluster.Client().Get(ctx, client.ObjectKeyFromObject(&old), now); err != nil {
			return err
		}
		if now.UID == old.UID {
			return fmt.Errorf("ServiceProxyRules %s is still the old one", old.Name)
		}
	}
	return nil
}

// restarts checks that traffic needs neither the controller nor the agents, and
// that an agent that comes back changes nothing.
func (d *demo) restarts(ctx context.Context) error {
	d.report.section("Controller and agents stop and start")
	d.report.check("the controller stops: connections go on", func() (string, error) {
		if err := d.controller.Stop(); err != nil {
			return "", err
		}
		if _, err := onlyTo(ctx, d.visitor.Place, d.clusterAddress("cluster-ip"), 60, "web-1", "web-2", "web-4"); err != nil {
			return "", err
		}
		var err error
		d.controller, err = d.nodeproxy.StartController()
		return "", err
	})
	if d.mode == v1alpha1.ModeUserspace {
		d.servingAgentsStop(ctx)
		return nil
	}
	d.report.check("the agent of node-1 is killed (-9), restarted: no rule is rewritten", func() (string, error) {
		return d.restartAgent(ctx, 0, (*cluster.Process).Kill)
	})
	d.report.check("the agent of node-3 is stopped (SIGTERM), restarted: the same", func() (string, error) {
		return d.restartAgent(ctx, 2, (*cluster.Process).Stop)
	})
	return nil
}

// restartAgent ends the agent of a node, starts it again and wants that the
// node's rules are the very same, with their counters: a rule that is written
// again begins to count from zero.
func (d *demo) restartAgent(ctx context.Context, i int, end func(*cluster.Process) error) (string, error) {
	node := d.cluster.Node(i)
	// The most useful rules are those of Services in use.
	if _, err := connect(ctx, node.Place, d.clusterAddress("cluster-ip"), 20); err != nil {
		return "", err
	}
	before, err := d.countedRules(ctx, node)
	if err != nil {
		return "", err
	}
	if err := end(d.agents[i]); err != nil {
		return "", err
	}
	if _, err := connect(ctx, node.Place, d.clusterAddress("cluster-ip"), 20); err != nil {
		return "", fmt.Errorf("without an agent: %w", err)
	}
	stopped := time.Now().Truncate(time.Second)
	if d.agents[i], err = d.nodeproxy.StartAgent(node); err != nil {
		return "", err
	}
	err = install.Until(ctx, programmingLimit, func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := d.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		if rules.Status.Agent == nil || rules.Status.Agent.StartTime.Time.Before(stopped) {
			return fmt.Errorf("the new agent of %s has not reported yet; %s", node.Name(), d.agents[i].Tail())
		}
		return d.programmed(ctx)
	})
	if err != nil {
		return "", err
	}
	after, err := d.countedRules(ctx, node)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d rules, none written again", len(after)), sameRules(before, after, d.mode != v1alpha1.ModeNFTables)
}
