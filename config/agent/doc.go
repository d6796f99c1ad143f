// Package agent embeds the manifest of the agents' DaemonSet.
package agent
