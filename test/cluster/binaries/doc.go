// Package binaries provides the programs of a local cluster: etcd, kube-apiserver,
// kube-controller-manager, kubectl, kube-proxy for comparisons, and for real nodes
// kubelet, kube-scheduler and CoreDNS. It downloads the release files that
// hack/*/SHA*SUMS pins, and builds the others from their Go modules. They are cached in
// the user's cache directory by version, for all clones of the repository.
package binaries
