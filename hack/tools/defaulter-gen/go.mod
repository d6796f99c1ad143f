// This module pins defaulter-gen, so that none of its dependencies reaches the
// product's go.mod. hack/tool.sh builds it.
module github.com/nodeproxy-io/nodeproxy/hack/tools/defaulter-gen

go 1.26.0

tool k8s.io/code-generator/cmd/defaulter-gen

require (
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	golang.org/x/mod v0.37.0 // indirect
	golang.org/x/sync v0.21.0 // indirect
	golang.org/x/tools v0.47.0 // indirect
	k8s.io/code-generator v0.36.6 // indirect
	k8s.io/gengo/v2 v2.0.0-20250922181213-ec3ebc5fd46b // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
)
