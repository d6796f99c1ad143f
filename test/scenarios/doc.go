// Package scenarios tests what happens to packets in the situations that describe
// kube-proxy's behavior. Each test covers the whole path: Kubernetes objects are rendered
// as by the controller, combined and planned as by an agent, and loaded into a model of the
// kernel as input of iptables-restore, in which packets are traced.
package scenarios
