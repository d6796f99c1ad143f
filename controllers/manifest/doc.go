// Package manifest reads objects from files of YAML or JSON, and denies what users write exactly if the
// API server would.
//
//   - load.go: finds files; documents.go: splits them
//   - read.go: parses objects
//   - schemas.go: validates objects with their CRDs
package manifest
