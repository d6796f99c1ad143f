// Package scenarios tests the fate of packets in the situations by which kube-proxy's
// behavior is described. Each test goes the whole way:
// Kubernetes objects are rendered as the controller does, combined and planned
// as an agent does, given to a model of the kernel as input of iptables-restore,
// and there packets are traced.
package scenarios
