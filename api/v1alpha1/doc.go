// Package v1alpha1 defines the kinds of nodeproxy.io/v1alpha1, their defaults and limits, and
// the names that the controller and the agents agree on. It has no other behavior: it is what
// both sides share. make generate turns its comments into CRD descriptions and docs/api.md.
//
// Where to look:
//   - nodeproxy_types.go, nodeproxypolicy_types.go, serviceproxypolicy_types.go: the kinds
//     that users write; settings.go: the settings of a node.
//   - nodeproxyrules_types.go, serviceproxyrules_types.go: the rendered kinds;
//     nodeproxyrules_status.go: what agents report.
//   - names.go: names of objects, labels, annotations, conditions and reasons; versions.
//   - grants.go: what annotations record about changes; groupversion_info.go: the group.
//   - defaults.go, validate.go, limits.go: what settings and Services may be.
//
// +kubebuilder:object:generate=true
// +k8s:defaulter-gen=none
// +groupName=nodeproxy.io
package v1alpha1
