// Package alerts tests the alerts in config/prometheus with promtool, and checks that
// their metrics and runbooks exist.
package alerts
