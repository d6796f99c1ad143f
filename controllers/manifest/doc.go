// Package manifest reads objects from files of YAML or JSON, and refuses of what people
// write what the API server would.
package manifest
