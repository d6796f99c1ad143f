// Package doctor detects what is wrong with nodeproxy and with the Services of a cluster,
// or with one of them, and proposes remedies. It is pure: objects in, a report out.
//
//   - doctor.go: the order of the checks, and the second examination
//   - view.go: what the checks need of the objects; report.go: the report and how it is printed
//   - controller.go, nodes.go, rendered.go, endpoints.go, failing.go, connections.go, exposure.go:
//     the checks; package findings has those that status shares
package doctor
