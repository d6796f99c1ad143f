// Package manifest reads objects from files of YAML or JSON, and denies what users write exactly if the
// API server would.
//
//   - files.go: finds files, and splits them into documents
//   - read.go: parses objects
//   - schemas.go: validates objects with their CRDs
package manifest
