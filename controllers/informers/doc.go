// Package informers makes informers that continue soon after an outage of the API server.
package informers
