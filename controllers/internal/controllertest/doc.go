// Package controllertest has helpers of the unit tests of several controllers.
//
//   - objects.go: objects, queues and metrics; stock.go: a large cluster
package controllertest
