// Package manifests tests the manifests of config against a real API server: it
// accepts each of them, and their permissions let the controller and the agents do their
// work and nothing else.
package manifests
