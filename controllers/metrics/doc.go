// Package metrics defines the controller's own metrics. Gauges of the cluster are only exported by the
// leader. docs/metrics.md lists them; a test compares the two.
package metrics
