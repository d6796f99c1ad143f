// Command bundle writes the OLM bundle: the directory bundle and bundle.Dockerfile.
// It reads the objects of config/manifests, built by kustomize, from standard input.
// make bundle runs it.
//
//   - main.go: flags; generate.go: the ClusterServiceVersion; version.go: its hand-written part
//   - permissions.go: roles; descriptors.go: how the console shows fields; sort.go: order of objects
package main
