// Package agents maintains the agents' DaemonSet as NodeProxy specifies it, if the controller runs the
// agents.
package agents
