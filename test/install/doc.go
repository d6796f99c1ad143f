// Package install installs nodeproxy in a local cluster of package test/cluster as
// documented: the CRDs, the namespace, the generated roles and one NodeProxy, then the
// controller and the agents as processes with only the permissions of those roles. The
// admission policies are omitted, because they check the tokens of pods, and these
// processes have certificates; test/manifests tests them.
package install
