// Command cluster starts a cluster of package kubelets with nodeproxy installed from its
// images and manifest, waits until it is healthy, and leaves it running. `make cluster`
// builds what it needs and runs it.
package main
