// Package admission embeds the manifests of the admission policies.
package admission
