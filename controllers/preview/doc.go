// Package preview computes what the controllers render from objects once every rollout has finished, and
// how that differs from what is stored. It is pure: objects in, objects and differences out.
//
//   - preview.go: Render; nodes.go and services.go: its parts
//   - objects.go: the objects, and changes of users on top of them
//   - changes.go, text.go: differences, and how they are printed
package preview
