// Package servicepolicies writes the status of ServiceProxyPolicies, and resumes Services when a
// halted change may continue.
//
//   - controller.go: the reconciler
//   - survey.go: counts what policies result in for all Services
//   - status.go: the conditions, their messages, and events
package servicepolicies
