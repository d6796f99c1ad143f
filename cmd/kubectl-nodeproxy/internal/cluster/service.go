package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// labelOtherProxy is on Services that another proxy serves.
const labelOtherProxy = "service.kubernetes.io/service-proxy-name"

// Rendered returns nil if objects have the ServiceProxyRules of a Service, else an
// error that says why it has none: there is no such Service, or it is not one that is
// proxied. A node may hold what its objects said, without them.
func (r *Reader) Rendered(ctx context.Context, name Name, objects *Objects, node *v1alpha1.NodeProxyRules) error {
	var known []string
	for i := range objects.ServiceRules {
		service, ok := combine.ServiceOf(objects.ServiceRules[i].Name)
		if ok && Name(service) == name {
			return nil
		}
		if ok {
			known = append(known, service.String())
		}
	}
	if err := r.Unrendered(ctx, name, node); err != nil {
		return err
	}
	return fmt.Errorf("no Service %s is proxied: there are no ServiceProxyRules %s%s (kubectl get serviceproxyrules lists what is)%s",
		name, v1alpha1.ServiceProxyRulesName(name.Namespace, name.Name), Suggest(name.String(), known), held(node))
}

// Unrendered returns an error that says why a Service of the cluster has no
// ServiceProxyRules. Nil: it is not there, or may not be read, which makes no difference.
// Node is nil where it is not about one.
func (r *Reader) Unrendered(ctx context.Context, name Name, node *v1alpha1.NodeProxyRules) error {
	service := &corev1.Service{}
	if err := r.client.Get(ctx, client.ObjectKey(name), service); err != nil {
		return nil
	}
	if why := unproxied(service); why != "" {
		return fmt.Errorf("the Service %s is not proxied: %s", name, why)
	}
	return fmt.Errorf("the Service %s has no ServiceProxyRules: the controller has not rendered it; kubectl get events -n %s --field-selector involvedObject.name=%s says why, if it was refused%s",
		name, name.Namespace, name.Name, held(node))
}

// held says that a Service without objects may be one that the node still serves.
func held(node *v1alpha1.NodeProxyRules) string {
	if node == nil || node.Status.Held == 0 {
		return ""
	}
	return fmt.Sprintf("; but node %s holds the rules of %s whose objects have vanished, and may serve it as before: see Programmed in kubectl describe nodeproxyrules %s",
		node.Name, output.Plural(int(node.Status.Held), "Service"), node.Name)
}

// unproxied says why a Service is not one to have ServiceProxyRules; empty: it is.
func unproxied(service *corev1.Service) string {
	switch proxy, other := service.Labels[labelOtherProxy]; {
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return "it is of type ExternalName, which is a matter of DNS alone"
	case service.Spec.ClusterIP == corev1.ClusterIPNone:
		return "it is headless (clusterIP: None): its clients connect to its pods themselves"
	case other:
		return fmt.Sprintf("its label %s leaves it to %q", labelOtherProxy, proxy)
	default:
		return ""
	}
}
