// Package findings passes what reconcilers report in the status of NodeProxy to package summary,
// its only writer.
package findings
