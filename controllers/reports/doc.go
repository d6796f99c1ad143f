// Package reports reads what the status of an object says: whether an agent responds, whether its
// Node exists, and the condition Ready.
package reports
