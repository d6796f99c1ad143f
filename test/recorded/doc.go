// Package recorded stores the state of a cluster, as far as the kubectl plugin reads it,
// and serves it as an API server would.
//
// A state is recorded in a directory: one YAML list for each kind (nodeproxyrules.yaml
// and so on) as the API server returned it; a file now with the time at which it was
// recorded (RFC 3339); and, to deny reading some kinds, a file forbidden with their names,
// one per line. If the list of a nodeproxy kind is missing, the cluster lacks its CRD.
//
// The states that tests use are stored as one file each, without the fields that the
// plugin never reads, and with only what differs from another state. Command compact
// writes them.
//
//   - record.go: records; document.go, lists.go, render.go, trim.go: the file of a state; server.go: serves it
package recorded
