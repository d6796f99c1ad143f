// Package servicepolicies writes the status of ServiceProxyPolicies, and resumes Services when a
// halted change may go on.
//
//   - controller.go: the reconciler
//   - survey.go: counts what policies make of all Services
//   - status.go: the conditions, their messages, and events
package servicepolicies
