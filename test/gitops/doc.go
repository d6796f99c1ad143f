// Package gitops tests what docs/gitops.md documents of Argo CD and Flux without
// either: it runs the scripts and expressions of config/gitops as these tools do, on
// statuses as the controller writes them.
package gitops
