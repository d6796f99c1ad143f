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
	unavailable
	rejections
	differences
	removals
	stuck
	modesRun
	pendingCleanups
	modeErrors
)

const (
	// stuckAfter is how long one step of the sync loop may take until it is logged.
	stuckAfter = 10 * time.Second
	// rejectionsPause is the least time between two lines that name rejected Services: one
	// that changes all the time may be rejected and accepted in turn.
	rejectionsPause = time.Minute
)

// noteChange notes the text of a subject. It returns the former one, and whether they differ.
func (a *Agent) noteChange(about subject, text string) (former string, changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	former = a.logged[about]
	a.logged[about] = text
	return former, text != former
}

// logFailure logs an error if it is new, and its end.
func (a *Agent) logFailure(about subject, err error, failed, ended string, details ...any) {
	switch former, changed := a.noteChange(about, wording.OfError(err)); {
	case err != nil && changed:
		a.log.Error(err, failed, details...)
	case err == nil && former != "":
		a.log.Info(ended, details...)
	}
}

// logBegin logs when something begins, and when it ends.
func (a *Agent) logBegin(about subject, lasts bool, begun string, details []any, ended string) {
	var list []string
	if lasts {
		list = []string{"lasts"}
	}
	a.logList(about, list, begun, details, ended)
}

// logList logs a list when it changes or becomes empty.
func (a *Agent) logList(about subject, list []string, some string, details []any, none string) {
	switch _, changed := a.noteChange(about, strings.Join(list, "; ")); {
	case changed && len(list) > 0:
		a.log.Info(some, details...)
	case changed:
		a.log.Info(none)
	}
}

// logStuck logs that the sync loop waits for a program that does not end.
func (a *Agent) logStuck(overdue time.Duration) {
	a.logBegin(stuck, overdue >= stuckAfter,
		"Reading or writing the rules does not end; nothing is written until it does", []any{"for", overdue.Round(time.Second)},
		"The sync loop continues")
}

func (a *Agent) logSync(err error, kind v1alpha1.SyncKind, took time.Duration, report *v1alpha1.SyncReport) {
	a.logFailure(failures, err, "Could not write everything to the kernel; the rest stays as it was. Retrying", "Writing to the kernel works again", "kind", kind, "duration", took)
	if report != nil {
		a.log.V(2).Info("Synced", "kind", kind, "duration", took, "servicesChanged", report.ServicesChanged)
	}
}

// logWarnings logs what besides the rules of Services could not be done.
func (a *Agent) logWarnings(list []string) {
	a.logList(warnings, list,
		"The rules of Services are written, but something else could not be done on this node", []any{"warnings", list},
		"What could not be done on this node is done now")
}

// logCleanups logs that cleanup of another mode is pending.
func (a *Agent) logCleanups(list []string) {
	a.logBegin(pendingCleanups, len(list) > 0,
		"Cleanup of another mode is pending", []any{"pending", list},
		"Cleanup of the other mode is complete")
}

// logUnavailable logs which families this node cannot program and no Service needs.
func (a *Agent) logUnavailable(reasons []string) {
	a.logList(unavailable, reasons,
		"This node lacks an IP family that no Service uses; it is left out until one does, or the node has it", []any{"reasons", reasons},
		"No IP family is left out anymore")
}

// logRejected logs which Services the kernel rejects.
func (a *Agent) logRejected(names []string) {
	if len(names) > 0 && !a.mayLogRejected(strings.Join(names, "; ")) {
		return
	}
	a.logList(rejections, names,
		"The kernel rejects rules of some Services, which retain their former ones; see the status of the NodeProxyRules", []any{"count", len(names), "services", wording.Examples(names)},
		"The kernel no longer rejects rules of any Service")
}

// mayLogRejected reports whether a list of rejected Services is new, and the last one was
// logged a while ago.
func (a *Agent) mayLogRejected(list string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.options.Clock.Now()
	if list == a.logged[rejections] || now.Sub(a.rejectionsLogged) < rejectionsPause {
		return false
	}
	a.rejectionsLogged = now
	return true
}
