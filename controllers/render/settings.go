package render

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"

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
	have, err := fieldsOf(complete)
	if err != nil {
		return "", err
	}
	defaults, err := fieldsOf(v1alpha1.CompleteSettings(nil))
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(differing(have, defaults)) // map keys come out sorted
	if err != nil {
		return "", fmt.Errorf("encode settings: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:4]), nil
}

// fieldsOf returns settings as their JSON fields.
func fieldsOf(s *v1alpha1.ProxySettings) (map[string]any, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("decode settings: %w", err)
	}
	return fields, nil
}

// differing returns the fields of have that differ from base.
func differing(have, base map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range have {
		if inner, ok := value.(map[string]any); ok {
			baseInner, _ := base[name].(map[string]any)
			if d := differing(inner, baseInner); len(d) > 0 {
				out[name] = d
			}
			continue
		}
		if !reflect.DeepEqual(value, base[name]) {
			out[name] = value
		}
	}
	return out
}
