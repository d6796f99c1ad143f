package agent

import (
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// subject is something that is logged when it changes.
type subject int

const (
	failures subject = iota
	warnings
	absences
	refusals
	looks
	beginnings
	differences
	removals
	stuck
	ranModes
	retirements
	modeDoubts
)

// stuckAfter is how long one step of the sync loop may take until it is logged.
const stuckAfter = 10 * time.Second

// logStuck says when the sync loop waits for a program that does not end.
func (a *Agent) logStuck(overdue time.Duration) {
	text := ""
	if overdue >= stuckAfter {
		text = "stuck"
	}
	switch former, changed := a.news(stuck, text); {
	case text != "" && changed:
		a.log.Info("A program that reads or writes the rules has not ended for a while; nothing is written until it does. See which it is and what it waits for: ps -ef | grep -E 'iptables|ip6tables'; end it if it hangs", "for", overdue.Round(time.Second))
	case text == "" && former != "":
		a.log.Info("The sync loop goes on")
	}
}

// news notes what there is to say on a subject and returns what there was
// before, and whether the two differ.
func (a *Agent) news(about subject, text string) (former string, changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	former = a.said[about]
	a.said[about] = text
	return former, text != former
}

func (a *Agent) logSync(err error, kind v1alpha1.SyncKind, took time.Duration, report *v1alpha1.SyncReport) {
	switch former, changed := a.news(failures, wording.OfError(err)); {
	case err != nil && changed:
		a.log.Error(err, "Could not write everything to the kernel; what could be written is written, all else stays as it was. Trying again with growing pauses", "kind", kind, "duration", took)
	case err == nil && former != "":
		a.log.Info("Writing to the kernel works again", "kind", kind, "duration", took)
	}
	if report != nil {
		a.log.V(2).Info("Synced", "kind", kind, "duration", took, "servicesChanged", report.ServicesChanged)
	}
}

// logList says what a list holds, or that it has become empty, when that
// changes.
func (a *Agent) logList(about subject, list []string, some string, details []any, none string) {
	_, changed := a.news(about, strings.Join(list, "; "))
	switch {
	case !changed:
	case len(list) > 0:
		a.log.Info(some, details...)
	default:
		a.log.Info(none)
	}
}

// logWarnings says what could not be done besides the rules of Services.
func (a *Agent) logWarnings(list []string) {
	a.logList(warnings, list,
		"The rules of Services are written, but not all else could be done on this node", []any{"warnings", list},
		"What could not be done on this node besides the rules of Services is done now")
}

// logRetiring says when something of another mode stays for a while, and when all
// of it has gone.
func (a *Agent) logRetiring(list []string) {
	text := ""
	if len(list) > 0 {
		text = "some"
	}
	switch former, changed := a.news(retirements, text); {
	case text != "" && changed:
		a.log.Info("Something of another mode stays in the kernel for a while; it goes by itself", "retiring", list)
	case text == "" && former != "":
		a.log.Info("Nothing of another mode is left in the kernel")
	}
}

// logAbsent says which families this node cannot program and no Service needs.
func (a *Agent) logAbsent(reasons []string) {
	a.logList(absences, reasons,
		"No Service has addresses of an IP family that this node lacks; it is left out until one has, or the node gets it", []any{"reasons", reasons},
		"No IP family is left out any more")
}

// refusalsPause is the least time between two lines that name refused Services: one
// that is changed all the time may be refused and taken in turn.
const refusalsPause = time.Minute

// logRefused says which Services the kernel does not take.
func (a *Agent) logRefused(names []string) {
	if len(names) > 0 && !a.mayNameRefused(strings.Join(names, "; ")) {
		return
	}
	a.logList(refusals, names,
		"The kernel refuses rules of some Services, which keep those they had; the status of the NodeProxyRules says why", []any{"count", len(names), "services", wording.Examples(names)},
		"The kernel takes the rules of all Services again")
}

// mayNameRefused reports whether a list of refused Services is another one than was
// last logged, and that is a while ago.
func (a *Agent) mayNameRefused(list string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.options.Clock.Now()
	if list == a.said[refusals] || now.Sub(a.refusalsNamed) < refusalsPause {
		return false
	}
	a.refusalsNamed = now
	return true
}
