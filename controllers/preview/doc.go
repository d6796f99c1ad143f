// Package preview says what the controllers make of objects once every rollout is
// over, and how that differs from what is stored. It is pure: objects in, objects and
// differences out.
package preview
