package controllers

import (
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// waker triggers a reconciler although no object has changed.
type waker chan event.GenericEvent

// wake triggers it, unless a trigger is pending: everything is computed afresh each time.
func (w waker) wake() {
	select {
	case w <- event.GenericEvent{Object: &v1alpha1.NodeProxy{}}:
	default:
	}
}

// wakers trigger the reconcilers: each when this controller begins to lead.
type wakers struct {
	summary, services, nodes, rollout, agents, apiServers, servicePolicies, clusterObjects waker
	// keptServices is for Services that keep their overrides; at the beginning of a term all
	// Services are reconciled anyway.
	keptServices waker
}

func newWakers() wakers {
	one := func() waker { return make(waker, 1) }
	return wakers{summary: one(), services: one(), nodes: one(), rollout: one(), agents: one(), apiServers: one(), servicePolicies: one(), clusterObjects: one(), keptServices: one()}
}

func (w wakers) wakeAll() {
	for _, one := range []waker{w.summary, w.services, w.nodes, w.rollout, w.agents, w.apiServers, w.servicePolicies, w.clusterObjects} {
		one.wake()
	}
}
