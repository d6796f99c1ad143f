// Package api tests the schemas of the nodeproxy.io kinds against a real API server:
// what is invalid and with which message, that the API server sets no defaults, and that
// kubectl explain documents every field.
package api
