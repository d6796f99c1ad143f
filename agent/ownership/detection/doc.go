// Package detection detects, in the kernel and on the node, whether another proxy serves the
// Services of this node. docs/migration.md has the table of indicators.
//
// Some indicators exist for as long as their proxy is active. Others, which kube-proxy leaves
// behind when it stops, indicate it only if they appear while we write.
//
//   - detection.go: the indicators; node.go: reads the node; legacy.go: tables of the legacy variant
package detection
