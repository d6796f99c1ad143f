// Package metricsdoc compares docs/metrics.md with the metrics that a program
// registers, for the tests of both programs.
package metricsdoc
