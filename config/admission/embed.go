package admission

import "embed"

//go:embed agents.yaml nodeproxy.yaml nodes.yaml rendered.yaml
var policies embed.FS

// Policies returns the manifests: YAML files, each with one policy and its
// binding.
func Policies() embed.FS { return policies }
