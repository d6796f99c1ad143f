// Package findings detects what is wrong with nodeproxy itself: its NodeProxy, its pods
// and its nodes. The commands status and doctor share it; doctor adds the findings about
// Services. It is pure: objects in, findings out.
//
//   - finding.go: a finding, and the checks that findings belong to
//   - order.go: consequences below their causes, the most important finding first
//   - table.go: how findings, skipped checks and notes are printed
//   - examination.go: one look at a cluster's objects
//   - controller.go, pods.go, nodes.go: the checks
package findings
