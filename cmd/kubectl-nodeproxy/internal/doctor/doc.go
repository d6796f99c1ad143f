// Package doctor detects what is wrong with nodeproxy and with the Services of a cluster,
// or with one of them, and proposes remedies. It is pure: objects in, a report out.
//
//   - doctor.go: the order of the checks, and the second examination
//   - report.go, table.go: the report and how it is printed
//   - view.go: the objects, indexed
//   - one file for each check of Services; package findings has the checks of nodeproxy
//     itself, which status shares
package doctor
