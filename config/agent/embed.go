package agent

import _ "embed" // for the manifest

//go:embed daemonset.yaml
var daemonSet string

// DaemonSet returns the manifest, in YAML.
func DaemonSet() string { return daemonSet }
