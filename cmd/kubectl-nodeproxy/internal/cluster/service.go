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

// labelOtherProxy marks Services of another proxy.
const labelOtherProxy = "service.kubernetes.io/service-proxy-name"

// Rendered returns nil if objects have the ServiceProxyRules of a Service, else an error that
// explains why not: the Service does not exist, or is not proxied. A node may retain its rules
// nevertheless.
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
	return fmt.Errorf("no Service %s is proxied: there are no ServiceProxyRules %s%s (kubectl get serviceproxyrules lists the proxied Services)%s",
		name, v1alpha1.ServiceProxyRulesName(name.Namespace, name.Name), Suggest(name.String(), known), retained(node))
}

// Unrendered returns an error that explains why a Service has no ServiceProxyRules; nil: it does
// not exist, or is not readable. Node may be nil.
func (r *Reader) Unrendered(ctx context.Context, name Name, node *v1alpha1.NodeProxyRules) error {
	service := &corev1.Service{}
	if err := r.client.Get(ctx, client.ObjectKey(name), service); err != nil {
		return nil
	}
	if why := unproxied(service); why != "" {
		return fmt.Errorf("the Service %s is not proxied: %s", name, why)
	}
	return fmt.Errorf("the Service %s has no ServiceProxyRules: the controller has not rendered it; if it rejected it, kubectl get events -n %s --field-selector involvedObject.name=%s shows why%s",
		name, name.Namespace, name.Name, retained(node))
}

// retained reports that the node may still serve a Service without object.
func retained(node *v1alpha1.NodeProxyRules) string {
	if node == nil || node.Status.Retained == 0 {
		return ""
	}
	return fmt.Sprintf("; but node %s retains the rules of %s whose objects have vanished, and may still serve it: see Programmed in kubectl describe nodeproxyrules %s",
		node.Name, output.Plural(int(node.Status.Retained), "Service"), node.Name)
}

// unproxied explains why a Service has no ServiceProxyRules; empty: it must have some.
func unproxied(service *corev1.Service) string {
	switch proxy, other := service.Labels[labelOtherProxy]; {
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return "it is of type ExternalName, which only concerns DNS"
	case service.Spec.ClusterIP == corev1.ClusterIPNone:
		return "it is headless (clusterIP: None): its clients connect to its pods directly"
	case other:
		return fmt.Sprintf("its label %s assigns it to %q", labelOtherProxy, proxy)
	default:
		return ""
	}
}
