package desired

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Rejection is why this agent does not apply its NodeProxyRules.
type Rejection struct {
	Reason  string // of condition Accepted
	Message string
}

// Meanwhile ends every message of a rejection.
const Meanwhile = "meanwhile the rules on this node stay as they are and nothing is written"

// accept returns why an agent that understands such formats cannot apply the object on any
// node; nil: it can.
func accept(object *v1alpha1.NodeProxyRules, f Formats) *Rejection {
	if !f.know(object.Spec.FormatVersion) {
		return &Rejection{v1alpha1.ReasonUnknownFormat, f.unknown(object.Spec.FormatVersion) + "; " + Meanwhile}
	}
	if errs := v1alpha1.ValidateSettings(v1alpha1.CompleteSettings(&object.Spec.Settings)); len(errs) > 0 {
		problem := errs[0].Error()
		if more := len(errs) - 1; more > 0 {
			problem = fmt.Sprintf("%s (and %d more)", problem, more)
		}
		return &Rejection{v1alpha1.ReasonInvalid, fmt.Sprintf(
			"%s; correct it in the NodeProxy (manual changes of this object are reverted); %s", problem, Meanwhile)}
	}
	return nil
}

// Formats are the versions of rendered objects that an agent understands, in order.
type Formats []int32

// formatsOf sorts versions; none means those of this release.
func formatsOf(versions []int32) Formats {
	if len(versions) == 0 {
		return v1alpha1.FormatVersions()
	}
	return slices.Compact(slices.Sorted(slices.Values(versions)))
}

func (f Formats) know(version int32) bool { return slices.Contains(f, version) }

// unknown is the message about an unknown version.
func (f Formats) unknown(version int32) string {
	known := make([]string, 0, len(f))
	for _, v := range f {
		known = append(known, fmt.Sprint(v))
	}
	return fmt.Sprintf("spec.formatVersion %d is not known to this agent, which knows %s: upgrade the agents", version, strings.Join(known, ", "))
}

// factWarnings are the facts that the settings need and the Node lacks in a family, with the
// effect and what to do. Everything else is programmed, and the fact is used once it appears.
func factWarnings(family dataplane.Family, node dataplane.Node, nodePorts bool) []string {
	var out []string
	if *node.Settings.NodePorts.AddressMode == v1alpha1.NodePortsPrimary && len(node.Addresses) == 0 && nodePorts {
		out = append(out, fmt.Sprintf("the Node has no %s address, so NodePorts answer on all %s addresses and not on its primary one; check that the kubelet or the cloud controller reports one in status.addresses of the Node, or change spec.settings.nodePorts", family, family))
	}
	if missing, todo := missingDetector(family, node); missing != "" {
		out = append(out, fmt.Sprintf("%s, so pods of this node cannot be distinguished from other %s clients: clients that are no pods are not masqueraded on their way to cluster IPs, and pods reach external addresses of Services with external traffic policy Local as those clients do; %s", missing, family, todo))
	}
	return out
}

// missingDetector is what is missing to recognize pods of this node, and what to do about it.
func missingDetector(family dataplane.Family, node dataplane.Node) (missing, todo string) {
	d := node.Settings.DetectLocal
	switch d.Mode {
	case v1alpha1.DetectLocalNodeCIDR:
		if len(node.PodCIDRs) == 0 {
			return fmt.Sprintf("the Node has no %s range in spec.podCIDRs", family),
				"check that the controller manager or the network plugin allocates one, or change spec.settings.detectLocal"
		}
	case v1alpha1.DetectLocalClusterCIDR:
		ofFamily := func(text string) bool {
			p, err := netip.ParsePrefix(text)
			return err == nil && family.Of(p.Addr())
		}
		if !slices.ContainsFunc(d.ClusterCIDRs, ofFamily) {
			return fmt.Sprintf("spec.settings.detectLocal.clusterCIDRs has no %s range", family), "add that of the cluster's pods"
		}
	}
	return "", ""
}
