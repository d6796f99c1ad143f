//go:build tools

// Package kubernetes pins the programs of the oldest Kubernetes that nodeproxy
// promises to run on. Nothing imports it.
package kubernetes

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
