package e2e

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// nodeRebooted pulls the plug of node-2 and starts it again: kernel and /run are
// empty, its disk and its Node object are as they were.
func nodeRebooted(r *run) {
	node := r.cluster.Node(1)
	r.must(node.Stop())
	booted := time.Now().Truncate(time.Second) // as the API server keeps times
	r.must(node.Start(r.ctx))
	r.remark("its kubelet is ready %s after the boot", seconds(time.Since(booted)))
	r.until(3*time.Minute, "all is well", func() error {
		if err := r.startedSince(node.Name(), booted); err != nil {
			return err
		}
		return r.well()
	})
	r.remark("all is well %s after it", seconds(time.Since(booted)))
	r.podsStayReady()
	r.webIsServed()
	r.reaches(r.cluster.Outside(), "tcp", localIP+":80", r.web()[1])
}

// podsStayReady waits until the rules rest and all is well. Kubernetes calls the
// pods of a node unready once it has seen that the node was, which may be after
// they have started anew, until the kubelet contradicts.
func (r *run) podsStayReady() {
	r.Helper()
	const longer = 7 * time.Second // than the node controller's pause of 5 s
	before, since := r.allRules(), time.Now()
	r.until(time.Minute, "rules rest and all is well", func() error {
		if now := r.allRules(); !cmp.Equal(before, now) {
			before, since = now, time.Now()
		}
		if err := r.well(); err != nil {
			since = time.Now()
			return err
		}
		r.pass(500 * time.Millisecond) // to read all rules is work
		if time.Since(since) < longer {
			return errors.New("rules have changed just now")
		}
		return nil
	})
}

// startedSince returns nil when the agent of a node, and all containers of the
// node's pods, have started since.
func (r *run) startedSince(node string, since time.Time) error {
	rules := &v1alpha1.NodeProxyRules{}
	if err := r.cluster.Client().Get(r.ctx, client.ObjectKey{Name: node}, rules); err != nil {
		return err
	}
	if rules.Status.Agent == nil || rules.Status.Agent.StartTime.Time.Before(since) {
		return fmt.Errorf("the agent of %s has not reported since", node)
	}
	pods := &corev1.PodList{}
	if err := r.cluster.Client().List(r.ctx, pods); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName != node {
			continue
		}
		for _, status := range pod.Status.ContainerStatuses {
			if running := status.State.Running; running == nil || running.StartedAt.Time.Before(since) {
				return fmt.Errorf("pod %s has not started since", pod.Name)
			}
		}
	}
	return nil
}

// nodeCreatedAgain takes node-2 away at once, with its disk and its Node object,
// and has a new one of the same name join: it comes with the startup taint, and
// serves.
func nodeCreatedAgain(r *run) {
	node := r.cluster.Node(1)
	before := r.node(node.Name()).UID
	r.must(node.Delete(r.ctx))
	lost := time.Now().Truncate(time.Second)
	r.must(node.Start(r.ctx))
	joined := time.Now()
	if r.node(node.Name()).UID == before {
		r.Fatal("it is the same Node object")
	}
	r.until(3*time.Minute, "all is well", func() error {
		if r.hasTaint(node.Name()) {
			return fmt.Errorf("%s has the startup taint", node.Name())
		}
		if err := r.startedSince(node.Name(), lost); err != nil {
			return err
		}
		return r.well()
	})
	r.remark("all well %s after it joined", seconds(time.Since(joined)))
	r.podsStayReady()
	r.webIsServed()
	r.reaches(r.cluster.Outside(), "tcp", localIP+":80", r.web()[1])
}

func (r *run) node(name string) *corev1.Node {
	r.Helper()
	node := &corev1.Node{}
	r.must(r.cluster.Client().Get(r.ctx, client.ObjectKey{Name: name}, node))
	return node
}
