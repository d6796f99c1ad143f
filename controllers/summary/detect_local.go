package summary

import (
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
)

const (
	eventDetectLocalNotSet = "DetectLocalNotSet"
	actionConfigure        = "Configure"
	// detectLocalNotSet is the message of Ready, and of the event, if detectLocal is missing.
	detectLocalNotSet = "All nodes are programmed, but spec.settings.detectLocal is not set: traffic from pods is treated like that of external clients. " +
		"Set it to match the pod network, or to mode None if that is intended."
)

// withDetectLocal returns the condition Ready with a warning if everything is programmed, pods
// are served and no setting says how their traffic is detected.
func withDetectLocal(ready metav1.Condition, np *v1alpha1.NodeProxy, rules []v1alpha1.NodeProxyRules) metav1.Condition {
	set := np.Spec.Settings != nil && np.Spec.Settings.DetectLocal != nil
	if ready.Status == metav1.ConditionTrue && !set && slices.ContainsFunc(rules, servesUndetectedPods) {
		ready.Message = detectLocalNotSet
	}
	return ready
}

// recordDetectLocal writes an event when the warning appears.
func (r *Reconciler) recordDetectLocal(before, after *v1alpha1.NodeProxy) {
	was, is := reports.Ready(before.Status.Conditions), reports.Ready(after.Status.Conditions)
	if is.Message == detectLocalNotSet && was.Message != detectLocalNotSet {
		r.Events.WarnNodeProxy(before, eventDetectLocalNotSet, actionConfigure, is.Message)
	}
}

// servesUndetectedPods reports whether a node does not detect local traffic and has an endpoint
// that is a pod with an address of its own.
func servesUndetectedPods(rules v1alpha1.NodeProxyRules) bool {
	if detect := rules.Spec.Settings.DetectLocal; detect != nil && detect.Mode != v1alpha1.DetectLocalNone {
		return false
	}
	for _, service := range rules.Spec.LocalEndpoints {
		for _, port := range service.Ports {
			for _, endpoint := range port.Endpoints {
				at, err := netip.ParseAddrPort(endpoint)
				if err == nil && !slices.Contains(rules.Spec.Node.Addresses, at.Addr().String()) {
					return true
				}
			}
		}
	}
	return false
}
