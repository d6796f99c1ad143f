// This module pins the Prometheus operator, whose CRDs the test takes from its
// source. Nothing is built of it, so it is not tidy.
module github.com/nodeproxy-io/nodeproxy/test/manifests/testdata/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.91.0
