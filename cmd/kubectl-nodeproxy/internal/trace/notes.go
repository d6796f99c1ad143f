package trace

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// maxUnused is how many unused objects are named.
const maxUnused = 5

// notes explain why a node may differ from its desired rules. An agent that does not support
// their format is an error: its rules have nothing to do with them.
func notes(node *v1alpha1.NodeProxyRules, set *combine.Set, o *cluster.Objects) ([]string, error) {
	if old := cluster.TooOld(node); old != "" {
		return nil, errors.New(old + "; kubectl nodeproxy doctor shows how to upgrade it")
	}
	list := o.Notes(node, set.Mode)
	if meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionProgrammed) && !slices.Contains(node.Status.Families, string(set.Family)) {
		list = append(list, fmt.Sprintf("%s is not programmed on this node", set.Family))
	}
	return list, nil
}

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
		why += ": " + text.Some(problems, maxUnused)
	}
	return why
}

// used returns an error if the packet goes to a Service by name, but its object has no
// effect: a trace would be misleading.
func (w *world) used(d *destination, set *combine.Set) error {
	if d.object == nil {
		return nil
	}
	if err := w.NewerService(d.object); err != nil {
		return fmt.Errorf("--to %s cannot be traced: %w", d.text, err)
	}
	if why := leftOut(set, d.object); why != "" {
		return fmt.Errorf("--to %s cannot be traced: ServiceProxyRules %s have no effect: %s", d.text, d.object.Name, why)
	}
	return nil
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
			newer = cmp.Or(newer, w.NewerService(o))
		case result.Service == nil && len(addresses(o.Spec.ClusterIPs)) < len(o.Spec.ClusterIPs) && slices.ContainsFunc(o.Spec.Ports, func(p v1alpha1.ServicePort) bool {
			return p.Port == int32(result.Destination.Port()) && p.Protocol == result.Protocol
		}):
			out = append(out, fmt.Sprintf("ServiceProxyRules %s have no effect, so this may be its cluster IP: %s", o.Name, why))
			newer = cmp.Or(newer, w.NewerService(o))
		}
	}
	if more := len(out) - maxUnused; more > 0 {
		out = append(out[:maxUnused], fmt.Sprintf("the same applies to %d more ServiceProxyRules", more))
	}
	if newer != nil {
		out = append(out, newer.Error())
	}
	if retained := int(node.Status.Retained); retained > 0 && result.Service == nil {
		out = append(out, fmt.Sprintf("%s may be an address of the %s that the node retains without an object, and still serves", result.Destination.Addr(), text.Count(retained, "Service")))
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
