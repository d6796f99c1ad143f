// Package kubelets runs whole Kubernetes clusters with real nodes on one machine:
// the control plane of package cluster with a scheduler and all controllers, and
// nodes that are machines of package cluster with a real kubelet, containerd and
// runc, so that pods are real containers with real images.
//
// Nothing proxies Services until nodeproxy or kube-proxy is installed: pods reach each
// other but no Service.
//
// The network is that of package cluster: the same addresses of the control
// plane, of the nodes and of the client outside, dual stack. The controller
// manager gives each node its ranges of pods; pods are joined to their node by
// the CNI plugins ptp and host-local, and nodes have routes to each other's pods.
// With ptp, unlike with a bridge, all traffic of pods passes the node's rules
// without the kernel's module br_netfilter.
//
// No registry is used: this package builds its own images from static programs, and
// LoadImage loads any docker-archive.
//
//	c, err := kubelets.Start(ctx, kubelets.Options{Nodes: 2, CoreDNS: true})
//	defer c.Stop()
//	err = c.LoadImage(ctx, "dist/images/nodeproxy-agent.tar")
//	err = c.Install(ctx, "dist/install.yaml")
//	out, err := c.Kubectl(ctx, "get", "pods", "-A")
//	client, err := c.Pod(ctx, "default", "web-1")
//	answer, err := client.Dial(ctx, "tcp", "10.96.0.1:443")
//
// Nodes have their own /run, /var/lib and /var/log. Other directories that a pod mounts
// from its node are this machine's, and are created there if missing, such as
// /lib/modules.
//
// It needs root, and the programs of `hack/install-packages.sh real-nodes`.
//
//   - cluster.go, node.go, kubelet.go, pod.go: cluster, nodes and pods; addons.go: what runs besides
//   - archive.go, images.go: container images; tools.go: where the programs are
package kubelets
