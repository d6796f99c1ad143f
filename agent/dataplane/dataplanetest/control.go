package dataplanetest

import (
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// What tests make a Fake do, and what they ask it.

// ReportChange reports a change by another program to Watch.
func (f *Fake) ReportChange(c dataplane.Change) { f.external <- c }

// Audits returns the number of audits.
func (f *Fake) Audits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.audits
}

// Drain makes CleanupMode leave everything, for a reason; an empty one ends that.
func (f *Fake) Drain(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.draining = why
}

// FailCleanupMode makes every CleanupMode fail; nil ends that.
func (f *Fake) FailCleanupMode(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stays = err
}

// Mode returns the mode that was last applied.
func (f *Fake) Mode() v1alpha1.ProxyMode {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mode
}

// LackMode makes the node lack something for one mode; nil ends that.
func (f *Fake) LackMode(mode v1alpha1.ProxyMode, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lacks[mode] = why
}

// Asked returns the number of calls of Supported for a mode.
func (f *Fake) Asked(mode v1alpha1.ProxyMode) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[mode]
}

// Services returns the Services in the kernel, sorted.
func (f *Fake) Services() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name := range f.kernel {
		names = append(names, name.String())
	}
	slices.Sort(names)
	return names
}

// Service returns a Service in the kernel; nil: it is missing.
func (f *Fake) Service(namespace, name string) *dataplane.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kernel[dataplane.ServiceName{Namespace: namespace, Name: name}]
}

// Node returns the node that was last applied.
func (f *Fake) Node() dataplane.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node
}

// Writes returns the number of Services written or removed.
func (f *Fake) Writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes
}

// ChangeFacts reports changed facts of the node to Follow.
func (f *Fake) ChangeFacts() { f.changes <- struct{}{} }

// Rechecks returns the number of successful Applies with Recheck.
func (f *Fake) Rechecks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rechecks
}

// Plant adds rules of no Service to the kernel.
func (f *Fake) Plant(svc *dataplane.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kernel[svc.Name] = svc
}

// Remove removes a Service's rules from the kernel, like another program.
func (f *Fake) Remove(namespace, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.kernel, dataplane.ServiceName{Namespace: namespace, Name: name})
}

// Doubt makes the next Apply full without a request, as if the kernel had been modified
// externally.
func (f *Fake) Doubt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doubts = true
}

// Fail makes every Apply, Verify and Cleanup fail; nil ends that.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
}

// Lack makes the node lack something; an empty string ends that.
func (f *Fake) Lack(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unsupported = what
	f.needsFull = true
}

// Warn makes every Apply and Verify return these warnings; none ends that.
func (f *Fake) Warn(warnings ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warnings = warnings
}

// Tries returns how often an Apply has tried to write one Service.
func (f *Fake) Tries(namespace, name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tries[dataplane.ServiceName{Namespace: namespace, Name: name}]
}

// Reject makes the kernel reject one Service; an empty reason ends that.
func (f *Fake) Reject(namespace, name, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rejects[dataplane.ServiceName{Namespace: namespace, Name: name}] = reason
}

// Part has one Service take so many Applies, if each is asked to pause.
func (f *Fake) Part(namespace, name string, parts int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parts[dataplane.ServiceName{Namespace: namespace, Name: name}] = parts
}

// Reduce makes one Service lack something that another Service has.
func (f *Fake) Reduce(namespace, name, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reduced[dataplane.ServiceName{Namespace: namespace, Name: name}] = reason
}
