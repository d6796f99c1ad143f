// Package preview computes what the controllers render from objects once every rollout has finished, and
// how that differs from what is stored. It is pure: objects in, objects and differences out.
//
//   - preview.go: the objects, and Render; nodes.go and services.go: its parts
//   - changes.go: differences, and how objects are printed
package preview
