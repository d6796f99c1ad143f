// Package agents keeps the agents' DaemonSet as NodeProxy asks, if the controller runs the agents.
package agents
