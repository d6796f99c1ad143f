package render

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TaintToBeDeleted announces, with any effect, that the autoscaler is about to delete a Node.
const TaintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Linux reports whether a Node runs Linux: by its label, else by its kubelet, else it is assumed.
func Linux(node *corev1.Node) bool {
	os := cmp.Or(node.Labels[corev1.LabelOSStable], node.Status.NodeInfo.OperatingSystem, string(corev1.Linux))
	return os == string(corev1.Linux)
}

// NodeFacts returns what an agent must know about its Node.
func NodeFacts(node *corev1.Node) v1alpha1.NodeFacts {
	toBeDeleted := func(t corev1.Taint) bool { return t.Key == TaintToBeDeleted }
	return v1alpha1.NodeFacts{
		Addresses: append(
			nodeAddresses(node, corev1.NodeInternalIP),
			nodeAddresses(node, corev1.NodeExternalIP)...),
		PodCIDRs: podCIDRs(node),
		Zone:     node.Labels[corev1.LabelTopologyZone],
		Draining: node.DeletionTimestamp != nil || slices.ContainsFunc(node.Spec.Taints, toBeDeleted),
	}
}

// nodeAddresses returns the Node's addresses of one type in the Node's order: the first one is
// primary.
func nodeAddresses(node *corev1.Node, kind corev1.NodeAddressType) []string {
	var out []string
	for _, a := range node.Status.Addresses {
		if addr, ok := parseAddr(a.Address); ok && a.Type == kind {
			out = append(out, addr.String())
		}
	}
	return eachOnce(out)
}

func podCIDRs(node *corev1.Node) []string {
	in := node.Spec.PodCIDRs
	if len(in) == 0 && node.Spec.PodCIDR != "" {
		in = []string{node.Spec.PodCIDR}
	}
	var out []string
	for _, prefix := range parsed(in, parsePrefix) {
		out = append(out, prefix.String())
	}
	return out
}

// NodeInput is what the rules of one node are rendered from.
type NodeInput struct {
	Node    *corev1.Node             // nil: it does not exist
	Current *v1alpha1.NodeProxyRules // the stored rules; nil: none
	// Settings to set, and the Policies that shape them, strongest first. Nil: those of Current.
	Settings       *Settings
	Policies       []string
	LocalEndpoints []v1alpha1.ServiceLocalEndpoints
	FormatVersion  int32
}

// Node renders the rules of a node. It returns false without rules to start from, if the Node or its
// settings are missing. An absent Node keeps its last known facts and counts as draining.
func Node(in NodeInput) (v1alpha1.NodeProxyRulesSpec, bool) {
	if in.Current == nil && (in.Node == nil || in.Settings == nil) {
		return v1alpha1.NodeProxyRulesSpec{}, false
	}
	spec := v1alpha1.NodeProxyRulesSpec{FormatVersion: in.FormatVersion, LocalEndpoints: in.LocalEndpoints}
	if in.Settings != nil {
		in.Settings.Complete.DeepCopyInto(&spec.Settings)
		spec.SettingsRevision = in.Settings.Revision
		spec.Policies = slices.Clone(in.Policies)
	} else {
		in.Current.Spec.Settings.DeepCopyInto(&spec.Settings)
		spec.SettingsRevision = in.Current.Spec.SettingsRevision
		spec.Policies = slices.Clone(in.Current.Spec.Policies)
	}
	spec.PolicySummary = PolicySummary(spec.Policies)
	if in.Node != nil {
		spec.Node = NodeFacts(in.Node)
	} else {
		in.Current.Spec.Node.DeepCopyInto(&spec.Node)
		spec.Node.Draining = true
	}
	return spec, true
}

// PolicySummary returns what `kubectl get` prints of the policies that shaped an object.
func PolicySummary(policies []string) string { return strings.Join(policies, ",") }
