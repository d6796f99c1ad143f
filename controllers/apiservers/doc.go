// Package apiservers maintains the ConfigMap with the addresses of the API servers, which agents and
// controllers read, and probes whether an API server answers.
package apiservers
