// Package reports reads and sets conditions: whether an agent responds, whether its Node exists, and
// the condition Ready.
package reports
