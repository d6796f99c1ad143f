package agent

import "github.com/nodeproxy-io/nodeproxy/api/v1alpha1"

// tuneTracking makes the kernel's settings of connection tracking those in
// force, if these are new. Only the sync loop calls it, and only while the agent
// may write. It is done before rules are written, some of which depend on them.
func (a *Agent) tuneTracking() {
	settings, _, _ := a.store.OwnObject()
	if a.tracking.Due(settings) {
		a.tune(settings)
	}
}

// tuneLate does that if there was no connection tracking before rules were
// written: some of them bring it.
func (a *Agent) tuneLate() {
	settings, _, _ := a.store.OwnObject()
	if a.tracking.Late() && a.tune(settings) {
		a.loop.Trigger()
	}
}

// retuneTracking looks whether others have changed the kernel's settings, and
// puts them right. It reports whether rules have to follow.
func (a *Agent) retuneTracking() bool {
	settings, _, _ := a.store.OwnObject()
	return a.tune(settings)
}

// tune reports whether rules have to follow.
func (a *Agent) tune(settings *v1alpha1.ProxySettings) bool {
	follow := a.tracking.Tune(settings)
	if follow {
		a.store.Refresh()
	}
	return follow
}
