// Package watches sets up reconcilers. It has the event predicates and handlers that several of them
// share, and makes informers that continue soon after an outage of the API server.
//
//   - watches.go: predicates, handlers and the queue; informers.go: informers
package watches
