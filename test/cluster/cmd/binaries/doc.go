// Command binaries downloads or builds missing programs among etcd, kube-apiserver,
// kube-controller-manager and kubectl, and prints their directory, as KUBEBUILDER_ASSETS
// expects it. Progress goes to standard error.
//
// It only downloads files that hack/kubernetes/SHA256SUMS or hack/etcd/SHA512SUMS pins, and
// builds the others from Go modules. NODEPROXY_RELEASES is the URL of a mirror with the same
// paths; the value "none" disables downloads. With NODEPROXY_KUBERNETES=oldest it provides the
// oldest supported Kubernetes. After a version change in go.mod, -pin writes the publishers'
// checksums to these files.
package main
