package agent

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// statusPause is the least time between writes that are not urgent, and
	// before a failed write is tried again.
	statusPause = 5 * time.Second
	// figuresPause is the least time between writes of figures alone.
	figuresPause = 5 * time.Minute
	// contestPause is the least time between writes against somebody who
	// edits the status.
	contestPause = time.Second
	// statusTimeout is how long a write may take.
	statusTimeout = 10 * time.Second
)

// applyStatus writes the status of the own NodeProxyRules by server-side apply
// and returns the object as stored.
type applyStatus func(ctx context.Context, name string, status *v1alpha1.NodeProxyRulesStatus) (*v1alpha1.NodeProxyRules, error)

// statusWriter decides when the status is written. Only one goroutine uses it.
type statusWriter struct {
	clock   clock.PassiveClock
	apply   applyStatus
	log     logr.Logger
	started time.Time

	last     *v1alpha1.NodeProxyRules // as stored by the last write
	lastTime time.Time                // of the last write
	failed   time.Time                // of the last attempt, if it failed
	failure  string
}

// urgency is how soon a status has to be written.
type urgency int

const (
	notAtAll   urgency = iota
	withOthers         // figures alone
	soon
	atOnce
	contested // somebody else has edited the status
)

// newest is the newest stored object that is known: the watched one, unless it
// is older than what the last write returned.
func (w *statusWriter) newest(watched *v1alpha1.NodeProxyRules) *v1alpha1.NodeProxyRules {
	if w.last != nil && w.last.UID == watched.UID && compareVersions(w.last.ResourceVersion, watched.ResourceVersion) > 0 {
		return w.last
	}
	return watched
}

// write brings the stored status up to date if that is due. It reports whether
// it has written.
func (w *statusWriter) write(ctx context.Context, s snapshot, f facts) bool {
	if s.own == nil || !s.exists {
		return false
	}
	stored := w.newest(s.own)
	wanted := buildStatus(s, f, stored.Status.Conditions)
	u := urgent(&wanted, &stored.Status)
	if u != notAtAll && w.last != nil && w.last.UID == stored.UID && !equality.Semantic.DeepEqual(stored.Status, w.last.Status) {
		u = contested
	}
	if !w.due(u, starting(s, f), s.now, &stored.Status) {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	object, err := w.apply(limited, stored.Name, &wanted)
	now := w.clock.Now()
	if err != nil {
		if w.failure != err.Error() && ctx.Err() == nil {
			w.log.Error(err, "Could not write the status of the NodeProxyRules; trying again every 5 s. The rules in the kernel are not affected", "nodeProxyRules", stored.Name)
		}
		w.failed, w.failure = now, err.Error()
		return false
	}
	w.last, w.lastTime = object, now
	w.failed, w.failure = time.Time{}, ""
	return true
}

func (w *statusWriter) due(u urgency, starting bool, now time.Time, stored *v1alpha1.NodeProxyRulesStatus) bool {
	if !w.failed.IsZero() && now.Sub(w.failed) < statusPause {
		return false
	}
	// After a restart the kernel still holds what the stored status says. A
	// first set that is applied soon does not touch it.
	if w.last == nil && starting && now.Sub(w.started) < patience &&
		meta.FindStatusCondition(stored.Conditions, v1alpha1.ConditionProgrammed) != nil {
		return false
	}
	since := now.Sub(w.lastTime)
	switch u {
	case atOnce:
		return true
	case contested:
		return since >= contestPause
	case soon:
		return since >= statusPause
	case withOthers:
		return since >= figuresPause
	default:
		return false
	}
}

// starting reports whether nothing is known yet that deserves a status.
func starting(s snapshot, f facts) bool {
	return !s.done && s.err == nil && s.refusal == nil && f.proxyMode == ""
}

// urgent compares the wanted status to the stored one. Conditions of types
// that are not wanted are somebody else's.
func urgent(wanted, stored *v1alpha1.NodeProxyRulesStatus) urgency {
	same := stored.DeepCopy()
	same.Conditions = nil
	sameReasons, sameMessages := true, true
	for i := range wanted.Conditions {
		c := &wanted.Conditions[i]
		o := meta.FindStatusCondition(stored.Conditions, c.Type)
		if o == nil {
			sameReasons = false
			continue
		}
		same.Conditions = append(same.Conditions, *o)
		sameReasons = sameReasons && o.Status == c.Status && o.Reason == c.Reason
		sameMessages = sameMessages && o.Message == c.Message
	}
	switch {
	case equality.Semantic.DeepEqual(wanted, same):
		return notAtAll
	case !sameReasons, wanted.Mode != stored.Mode, wanted.SettingsRevision != stored.SettingsRevision:
		return atOnce
	case !sameMessages, wanted.ObservedGeneration != stored.ObservedGeneration:
		return soon
	default:
		return withOthers
	}
}
