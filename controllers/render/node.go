package render

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
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
// settings are missing. An absent Node retains its last known facts and counts as draining.
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

// Settings are complete and valid settings of one node.
type Settings struct {
	// Complete has every field set and every CIDR in canonical form.
	Complete v1alpha1.ProxySettings
	// Revision identifies the fields that differ from the documented defaults.
	Revision string
}

// CompleteSettings completes settings (nil: none) with the documented defaults, validates the
// result and computes its revision. The error names every invalid field under spec.settings.
func CompleteSettings(written *v1alpha1.ProxySettings) (*Settings, error) {
	complete := v1alpha1.CompleteSettings(written)
	if errs := v1alpha1.ValidateSettings(complete); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	canonicalCIDRs(complete.DetectLocal.ClusterCIDRs)
	canonicalCIDRs(complete.NodePorts.CIDRs)
	canonicalCIDRs(complete.IPVS.ExcludeCIDRs)
	revision, err := settingsRevision(complete)
	if err != nil {
		return nil, err
	}
	return &Settings{Complete: *complete, Revision: revision}, nil
}

// canonicalCIDRs rewrites valid CIDRs in place, host bits masked.
func canonicalCIDRs(cidrs []string) {
	for i, s := range cidrs {
		if prefix, ok := parsePrefix(s); ok {
			cidrs[i] = prefix.String()
		}
	}
}

// settingsRevision hashes the fields that differ from the documented defaults, so that a release
// that adds a field does not change the revision of settings without it.
func settingsRevision(complete *v1alpha1.ProxySettings) (string, error) {
	text, err := json.Marshal(complete)
	if err != nil {
		return "", fmt.Errorf("encode settings: %w", err)
	}
	defaults, err := json.Marshal(v1alpha1.CompleteSettings(nil))
	if err != nil {
		return "", fmt.Errorf("encode the default settings: %w", err)
	}
	differing, err := jsonpatch.CreateMergePatch(defaults, text) // sorts the keys
	if err != nil {
		return "", fmt.Errorf("compare settings with the defaults: %w", err)
	}
	sum := sha256.Sum256(differing)
	return hex.EncodeToString(sum[:4]), nil
}
