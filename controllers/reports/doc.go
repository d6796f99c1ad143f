// Package reports reads and sets conditions: whether an agent responds, whether its Node exists, and
// the condition Ready. Findings pass what reconcilers report in the status of NodeProxy to package
// summary, its only writer.
package reports
