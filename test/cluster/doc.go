// Package cluster runs whole Kubernetes clusters on one machine, for the demo
// and for tests of the data plane: a real etcd, kube-apiserver and
// kube-controller-manager, and nodes and pods that are network namespaces.
//
// There is no kubelet. A pod is a Pod object, whose status this package writes as a
// kubelet would, and a network namespace with an echo server that answers over TCP and
// UDP with its own name and the client's address. The real controllers create
// EndpointSlices from these Pods, so ready, serving and terminating are as in any cluster.
//
// Clusters are dual stack, IPv4 first: nodes, pods and the client outside have
// an address of each family, and Services may (spec.ipFamilyPolicy).
//
//	                  root namespace: tests, kubectl
//	                        │ 198.18.<number>.0/30
//	   ┌────────────────────┴──────────────────────────────┐
//	   │ control plane: 172.20.0.1, API server on 6443,    │
//	   │ and the bridge that everything below is joined to │
//	   └──┬───────────────────────┬─────────────────────┬──┘
//	   node-1                  node-2                outside
//	 172.20.0.11             172.20.0.12           172.20.0.200
//	 fd00:172:20::11         fd00:172:20::12       fd00:172:20::200
//	10.244.1.0/24           10.244.2.0/24
//	fd00:10:244:1::/64      fd00:10:244:2::/64
//	   pods                    pods
//
// Services' addresses are of 10.96.0.0/16 and fd00:10:96::/112.
//
// Several clusters can run side by side: each has a number, and only the link
// to the root namespace has addresses that another cluster could see.
// Everything a cluster creates carries its number (npN-…), so that what a
// killed run left is recognized and removed by the next Start or by Clean.
//
// Tests use it, usually from TestMain, with a context that ends on SIGINT, so that Ctrl-C
// removes the cluster as well:
//
//	c, err := cluster.Start(ctx, cluster.Options{Nodes: 2, Progress: os.Stderr})
//	defer c.Stop()
//	pod, err := c.Node(0).RunPod(ctx, cluster.PodSpec{Name: "web", Labels: labels})
//	answer, err := c.Node(1).Dial(ctx, "tcp", pod.Address(8080))
//	// answer.Server == "web"
//
// Package kubelets builds clusters with real kubelets and containers on this one, with
// Options.RealNodes and Machine.
//
// It needs root, the iptables command and, to build the control plane for the
// first time, Go.
//
//   - cluster.go, controlplane.go, pki.go: start and stop; check.go: what it needs; slot.go, leftovers.go: several
//     clusters, and what a killed run left
//   - node.go, pod.go, place.go, named.go, machine.go, wire.go: nodes, pods, and their network namespaces
//   - process.go, outage.go, races.go, cgroups.go: programs that run there
//   - dial.go, service.go, trace.go: connections, and what the kernel knows of a lost one
package cluster
