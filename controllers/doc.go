// Package controllers is the central half of nodeproxy: reconcilers that watch
// Services, EndpointSlices, Nodes and NodeProxy, render them with package
// render and write ServiceProxyRules, NodeProxyRules and the status of
// NodeProxy. Reconcilers keep no state that a restart would miss: what they
// remember only paces writes and keeps events from being said twice.
package controllers
