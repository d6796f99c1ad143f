package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// endpointFails shows what the mode is for: an endpoint that is ready, and does not answer, costs no connection.
func (d *demo) endpointFails(ctx context.Context) error {
	d.report.section("An endpoint fails, and no connection does")
	node, pod, address := d.cluster.Node(2), d.web[2], d.clusterAddress("cluster-ip")
	if !d.report.check(pod.Name()+" is ready, and answers no more: none of 300 connections fails", func() (string, error) {
		if err := drop(ctx, pod, "--append"); err != nil {
			return "", err
		}
		t, err := onlyTo(ctx, d.visitor.Place, address, 300, "web-1", "web-2")
		return t.String(), err
	}) {
		return nil // the rest would prove nothing
	}
	d.report.check("node-3 counts retries", func() (string, error) {
		const metric = "nodeproxy_agent_userspace_retries_total"
		n, err := node.Total(ctx, "http://127.0.0.1:19256/metrics", metric)
		if err == nil && n == 0 {
			err = errors.New("it has tried no other endpoint")
		}
		return fmt.Sprintf("%s %d", metric, n), err
	})
	d.report.check("its status names the endpoint, and connections go on", func() (string, error) {
		stop, saw := watch(ctx, d.visitor.Place, address), ""
		err := d.untilFailing(ctx, node, func(failing []v1alpha1.FailingEndpoint) error {
			i := slices.IndexFunc(failing, func(e v1alpha1.FailingEndpoint) bool { return e.Endpoint == pod.Address(8080) })
			if i < 0 {
				return fmt.Errorf("it does not name %s: %+v", pod.Address(8080), failing)
			}
			saw = fmt.Sprintf("%s %s: %s %s", failing[i].Service, failing[i].Port, failing[i].Endpoint, failing[i].Reason)
			return nil
		})
		made, watchErr := stop()
		return fmt.Sprintf("%s; %d connections", saw, made), errors.Join(err, watchErr)
	})
	d.report.check(pod.Name()+" answers again: it gets connections, and the status names none", func() (string, error) {
		if err := drop(ctx, pod, "--delete"); err != nil {
			return "", err
		}
		if err := soon(ctx, d.visitor.Place, "tcp", address, pod.Name()); err != nil {
			return "", err
		}
		return "", d.untilFailing(ctx, node, func(failing []v1alpha1.FailingEndpoint) error {
			if len(failing) > 0 {
				return fmt.Errorf("it names %+v", failing)
			}
			return nil
		})
	})
	return nil
}

// drop changes the rule by which a pod drops all connections.
func drop(ctx context.Context, pod *cluster.Pod, command string) error {
	_, err := pod.Exec(ctx, "iptables", append([]string{"--wait", command}, strings.Fields("INPUT --protocol tcp --dport 8080 --jump DROP")...)...)
	return err
}

// untilFailing waits until a check accepts the endpoints that a node reports as failing.
func (d *demo) untilFailing(ctx context.Context, node *cluster.Node, check func([]v1alpha1.FailingEndpoint) error) error {
	return install.Until(ctx, programmingLimit, func(ctx context.Context) error {
		status, err := d.statusOf(ctx, node)
		if err != nil {
			return err
		}
		if status.Userspace == nil {
			return check(nil)
		}
		return check(status.Userspace.Endpoints)
	})
}

// servingAgentsStop shows what becomes of connections without the agent that serves them.
func (d *demo) servingAgentsStop(ctx context.Context) {
	address, first, third := d.clusterAddress("cluster-ip"), d.cluster.Node(0), d.cluster.Node(2)
	d.report.check("the agent of node-1 is killed (-9): the next one serves", func() (string, error) {
		if err := d.agents[0].Kill(); err != nil {
			return "", err
		}
		err := install.Until(ctx, programmingLimit, func(ctx context.Context) error { return rejected(ctx, first.Place, "tcp", address) })
		if err != nil {
			return "", fmt.Errorf("without an agent: %w", err)
		}
		begin := time.Now()
		if d.agents[0], err = d.nodeproxy.StartAgent(first); err != nil {
			return "", err
		}
		err = soon(ctx, first.Place, "tcp", address)
		return "after " + duration(time.Since(begin)) + ", and until then connections are rejected", err
	})
	for _, step := range []struct {
		title, seen string
		do          func() error
	}{
		{"the agent of node-3 is stopped (SIGTERM): the kernel serves, no connection fails", d.visitor.IP(), d.agents[2].Stop},
		{"it starts again, and serves: no connection fails", third.Address(), func() (err error) {
			d.agents[2], err = d.nodeproxy.StartAgent(third)
			return err
		}},
	} {
		d.report.check(step.title, func() (string, error) {
			stop := watch(ctx, d.visitor.Place, address)
			err := step.do()
			if err == nil {
				err = install.Until(ctx, programmingLimit, func(ctx context.Context) error { return d.sees(ctx, step.seen) })
			}
			made, watchErr := stop()
			return fmt.Sprintf("%d connections, now servers see %s", made, step.seen), errors.Join(err, watchErr)
		})
	}
	d.report.check("each node reports the desired state", func() (string, error) {
		return "", install.Until(ctx, programmingLimit, d.programmed)
	})
}
