// Package health answers probes over HTTP: those of load balancers and monitors on the proxy's
// ports, and those of the kubelet on the agent's own.
//
//   - health.go: answers; server.go: a port; checks.go: health-check node ports
package health
