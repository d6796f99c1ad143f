// Package rollout decides which nodes get changed settings next. It is pure: its decisions follow from
// objects of the API alone, so that a restart during a rollout changes nothing.
package rollout
