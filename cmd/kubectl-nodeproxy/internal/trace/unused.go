package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// maxUnused is how many unused objects are named.
const maxUnused = 5

// leftOut explains why an object has no effect in the family of a set; empty: it has.
func leftOut(set *combine.Set, o *v1alpha1.ServiceProxyRules) string {
	if why := set.LeftOut[o.Name]; why != "" {
		return why
	}
	name, _ := combine.ServiceOf(o.Name)
	if set.Services[name] != nil {
		return ""
	}
	why := fmt.Sprintf("it has no usable %s cluster IP", set.Family)
	if problems := set.Problems[name]; len(problems) > 0 {
		why += ": " + output.Some(problems, maxUnused)
	}
	return why
}

// used returns an error if the packet goes to a Service by name, but its object has no
// effect: a trace would be misleading.
func (w *world) used(d *destination, set *combine.Set) error {
	if d.object == nil {
		return nil
	}
	if err := w.newer(d.object); err != nil {
		return fmt.Errorf("--to %s cannot be traced: %w", d.text, err)
	}
	if why := leftOut(set, d.object); why != "" {
		return fmt.Errorf("--to %s cannot be traced: ServiceProxyRules %s have no effect: %s", d.text, d.object.Name, why)
	}
	return nil
}

// newer returns an error with the remedy if an object is of a newer release.
func (w *world) newer(o *v1alpha1.ServiceProxyRules) error {
	return w.Newer("ServiceProxyRules "+o.Name, o.Spec.FormatVersion, w.plugin)
}

// unused names the objects without effect that the packet may be for, and why.
func (w *world) unused(set *combine.Set, node *v1alpha1.NodeProxyRules, result *tracer.Result) []string {
	var out []string
	var newer error // one is enough
	for i := range w.ServiceRules {
		o := &w.ServiceRules[i]
		why := leftOut(set, o)
		if why == "" {
			continue
		}
		switch {
		case mayOwn(o, node, result):
			out = append(out, fmt.Sprintf("%s may be an address of ServiceProxyRules %s, which have no effect: %s", result.Destination, o.Name, why))
			newer = cmp.Or(newer, w.newer(o))
		case result.Service == nil && unreadable(o.Spec.ClusterIPs) && hasPort(o, result.Destination.Port(), result.Protocol):
			out = append(out, fmt.Sprintf("ServiceProxyRules %s have no effect, so this may be its cluster IP: %s", o.Name, why))
			newer = cmp.Or(newer, w.newer(o))
		}
	}
	if more := len(out) - maxUnused; more > 0 {
		out = append(out[:maxUnused], fmt.Sprintf("the same applies to %d more ServiceProxyRules", more))
	}
	if newer != nil {
		out = append(out, newer.Error())
	}
	if retained := int(node.Status.Retained); retained > 0 && result.Service == nil {
		out = append(out, fmt.Sprintf("%s may be an address of the %s that the node retains without an object, and still serves", result.Destination.Addr(), output.Plural(retained, "Service")))
	}
	return out
}

// mayOwn reports whether a destination is an address or node port of a Service.
func mayOwn(o *v1alpha1.ServiceProxyRules, node *v1alpha1.NodeProxyRules, result *tracer.Result) bool {
	to := result.Destination
	own := slices.Concat(o.Spec.ClusterIPs, o.Spec.ExternalIPs, o.Spec.LoadBalancerIPs)
	if slices.Contains(addresses(own), to.Addr()) {
		return true
	}
	return slices.Contains(addresses(node.Spec.Node.Addresses), to.Addr()) && slices.ContainsFunc(o.Spec.Ports, func(p v1alpha1.ServicePort) bool {
		return p.NodePort == int32(to.Port()) && p.Protocol == result.Protocol
	})
}

func unreadable(texts []string) bool {
	return slices.ContainsFunc(texts, func(text string) bool {
		_, err := netip.ParseAddr(text)
		return err != nil
	})
}

func hasPort(o *v1alpha1.ServiceProxyRules, port uint16, protocol v1alpha1.Protocol) bool {
	return slices.ContainsFunc(o.Spec.Ports, func(p v1alpha1.ServicePort) bool {
		return p.Port == int32(port) && p.Protocol == protocol
	})
}

// misnamed reports that the object of a Service exists under a wrong name; empty: it does not.
func (w *world) misnamed(name dataplane.ServiceName) string {
	for i := range w.ServiceRules {
		o := &w.ServiceRules[i]
		if _, ok := combine.ServiceOf(o.Name); !ok && o.Labels[v1alpha1.LabelServiceNamespace] == name.Namespace && o.Labels[v1alpha1.LabelServiceName] == name.Name {
			return fmt.Sprintf("ServiceProxyRules %s have the labels of %s, but no node uses them because they are not named %s", o.Name, name, v1alpha1.ServiceProxyRulesName(name.Namespace, name.Name))
		}
	}
	return ""
}
