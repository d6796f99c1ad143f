package render

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

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
