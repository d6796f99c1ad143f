// Command images writes container images as docker-archives, without a
// container engine: a static program and, for the agent, the root file system
// that debian-root.sh makes. The same files give the same bytes. hack/images.sh
// runs it.
package main
