// Package doctor finds out what is wrong with the Services of a cluster, or with one
// of them, from its objects, and says what to do. It is pure: objects in, a report out.
package doctor
