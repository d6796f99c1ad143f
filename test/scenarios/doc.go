// Package scenarios holds what becomes of packets in the situations by which
// kube-proxy's behaviour is described, as tests. Each goes the whole way:
// Kubernetes objects are rendered as the controller does, combined and planned
// as an agent does, given to a model of the kernel as input of iptables-restore,
// and there packets are traced.
package scenarios
