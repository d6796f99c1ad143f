// Package findings passes on what reconcilers have to report in the status of NodeProxy, which
// only package summary writes.
package findings
