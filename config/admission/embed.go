// Package admission holds the manifests of the admission policies.
package admission

import "embed"

//go:embed agents.yaml nodeproxy.yaml nodes.yaml rendered.yaml
var policies embed.FS

// Policies returns the manifests: files of one policy and its binding each, in
// YAML.
func Policies() embed.FS { return policies }
