package nodesettings

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// NewGrant records which settings a node is given, and why.
func NewGrant(r *policies.NodeResolution, by []v1alpha1.Cause, now time.Time) v1alpha1.SettingsGrant {
	return v1alpha1.SettingsGrant{
		Time: metav1.NewTime(now.UTC().Truncate(time.Second)), Revision: r.Settings.Revision, Owners: PolicyOwners(r), By: by,
	}
}

// PolicyOwners returns the policies that set fields, by the field's path.
func PolicyOwners(r *policies.NodeResolution) map[string]string {
	owners := maps.Clone(r.Owners)
	maps.DeleteFunc(owners, func(_, name string) bool { return name == policies.Base })
	return owners
}

// GrantOf parses the grant of a node's settings. It returns nil if there is none, because the rules
// are from an older release, or if it was edited and is invalid.
func GrantOf(rules *v1alpha1.NodeProxyRules) *v1alpha1.SettingsGrant {
	g := &v1alpha1.SettingsGrant{}
	if err := json.Unmarshal([]byte(rules.Annotations[v1alpha1.AnnotationRollout]), g); err != nil {
		return nil
	}
	return g
}

// SetGrant sets the annotations of a grant.
func SetGrant(rules *v1alpha1.NodeProxyRules, g v1alpha1.SettingsGrant) error {
	text, err := json.Marshal(g)
	if err != nil {
		return fmt.Errorf("encode the grant of settings to %s: %w", rules.Name, err)
	}
	metav1.SetMetaDataAnnotation(&rules.ObjectMeta, v1alpha1.AnnotationRollout, string(text))
	metav1.SetMetaDataAnnotation(&rules.ObjectMeta, v1alpha1.AnnotationIgnoreUpdates, "true")
	return nil
}

// WithSettings returns the rules of a node with other settings, and a grant.
func WithSettings(stored *v1alpha1.NodeProxyRules, r *policies.NodeResolution, g v1alpha1.SettingsGrant) (*v1alpha1.NodeProxyRules, error) {
	next := stored.DeepCopy()
	r.Settings.Complete.DeepCopyInto(&next.Spec.Settings)
	next.Spec.SettingsRevision = r.Settings.Revision
	next.Spec.Policies, next.Spec.PolicySummary = slices.Clone(r.Policies), render.PolicySummary(r.Policies)
	return next, SetGrant(next, g)
}
