package status

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// statusPause is the least time between writes that are not urgent.
	statusPause = 5 * time.Second
	// firstStatusRetry and lastStatusRetry bound the pauses before a failed write
	// is tried again.
	firstStatusRetry = 5 * time.Second
	lastStatusRetry  = 30 * time.Second
	// figuresPause is the least time between writes of figures alone.
	figuresPause = 5 * time.Minute
	// repairsPause is the least time between writes because rules were repaired:
	// a single repair is told of soon, many in a row are gathered.
	repairsPause = time.Minute
	// differencePause is the same where the number of differences has changed.
	differencePause = time.Minute
	// contestPause is the least time between writes against somebody who
	// edits the status.
	contestPause = time.Second
	// statusTimeout is how long a write may take.
	statusTimeout = 10 * time.Second
)

// applyStatus writes the status of the own NodeProxyRules by server-side apply
// and returns the object as stored.
type applyStatus func(ctx context.Context, name string, status *v1alpha1.NodeProxyRulesStatus) (*v1alpha1.NodeProxyRules, error)

// Writer decides when the status is written. Only one goroutine uses it.
type Writer struct {
	Clock   clock.PassiveClock
	Apply   applyStatus
	Log     logr.Logger
	Started time.Time
	// Share is a random number from 0 to 1: agents must not try again together.
	Share func() float64

	last     *v1alpha1.NodeProxyRules // as stored by the last write
	lastTime time.Time                // of the last write
	repairs  time.Time                // of the last write of a new number of repairs
	differed time.Time                // of the last write for a new number of differences
	RetryAt  time.Time                // not before, if the last attempt failed
	retry    time.Duration            // the longest pause after that
	failure  string
}

// NewWriter returns a Writer of the status of an agent that started at a time.
func NewWriter(clk clock.PassiveClock, apply applyStatus, log logr.Logger, started time.Time) *Writer {
	return &Writer{Clock: clk, Apply: apply, Log: log, Started: started, Share: rand.Float64}
}

// urgency is how soon a status has to be written.
type urgency int

const (
	notAtAll   urgency = iota
	withOthers         // figures alone
	differing          // another number of differences
	repaired           // rules that others had changed
	soon
	atOnce
	contested // somebody else has edited the status
)

// Newest is the newest stored object that is known: the watched one, unless it
// is older than what the last write returned.
func (w *Writer) Newest(watched *v1alpha1.NodeProxyRules) *v1alpha1.NodeProxyRules {
	if w.last != nil && w.last.UID == watched.UID && desired.CompareVersions(w.last.ResourceVersion, watched.ResourceVersion) > 0 {
		return w.last
	}
	return watched
}

// Write brings the stored status up to date if that is due. It reports whether
// it has written.
func (w *Writer) Write(ctx context.Context, s desired.Snapshot, f Facts) bool {
	if s.Own == nil || !s.Exists {
		return false
	}
	stored := w.Newest(s.Own)
	wanted := Build(s, f, stored.Status.Conditions)
	u := urgent(&wanted, &stored.Status)
	if u != notAtAll && w.last != nil && w.last.UID == stored.UID && !equality.Semantic.DeepEqual(stored.Status, w.last.Status) {
		u = contested
	}
	if !w.due(u, starting(s, f), s.Now, &stored.Status) {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	object, err := w.Apply(limited, stored.Name, &wanted)
	now := w.Clock.Now()
	if err != nil {
		if w.failure != err.Error() && ctx.Err() == nil {
			w.Log.Error(err, "Could not write the status of the NodeProxyRules; trying again, at most 30 s apart. The rules in the kernel are not affected", "nodeProxyRules", stored.Name)
		}
		w.retry = min(max(2*w.retry, firstStatusRetry), lastStatusRetry)
		w.RetryAt = now.Add(time.Duration(float64(w.retry) * (0.5 + w.Share()/2)))
		w.failure = err.Error()
		return false
	}
	if u == repaired {
		w.repairs = now
	}
	if u == differing {
		w.differed = now
	}
	w.last, w.lastTime = object, now
	w.RetryAt, w.retry, w.failure = time.Time{}, 0, ""
	return true
}

func (w *Writer) due(u urgency, starting bool, now time.Time, stored *v1alpha1.NodeProxyRulesStatus) bool {
	if now.Before(w.RetryAt) {
		return false
	}
	// After a restart the kernel still holds what the stored status says. A
	// first set that is applied soon does not touch it.
	if w.last == nil && starting && now.Sub(w.Started) < patience &&
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
	case repaired:
		return since >= statusPause && now.Sub(w.repairs) >= repairsPause
	case differing:
		return since >= statusPause && now.Sub(w.differed) >= differencePause
	case withOthers:
		return since >= figuresPause
	default:
		return false
	}
}

// starting reports whether nothing is known yet that deserves a status.
func starting(s desired.Snapshot, f Facts) bool {
	return !s.Done && s.Err == nil && s.Refusal == nil && f.Conflict() == ""
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
	case !sameMessages, wanted.ObservedGeneration != stored.ObservedGeneration, !slices.Equal(wanted.Families, stored.Families),
		trackingMoved(wanted.Conntrack, stored.Conntrack):
		return soon
	case wanted.LocalEndpoints != stored.LocalEndpoints:
		return soon // it concerns this node alone, unlike the other counts
	case differencesOver(wanted.Difference, stored.Difference):
		return soon // it is not as bad as it says
	case repairsOf(wanted) != repairsOf(stored):
		return repaired
	case differenceMoved(wanted.Difference, stored.Difference):
		return differing
	default:
		return withOthers
	}
}

// differencesOver reports whether a difference is told of that is none any more.
func differencesOver(wanted, stored *v1alpha1.DifferenceReport) bool {
	return wanted != nil && stored != nil && wanted.Count == 0 && stored.Count > 0
}

// differenceMoved reports whether there are more or fewer differences than before.
func differenceMoved(wanted, stored *v1alpha1.DifferenceReport) bool {
	return wanted != nil && stored != nil && wanted.Count != stored.Count
}

func repairsOf(s *v1alpha1.NodeProxyRulesStatus) int64 {
	if s.Drift == nil {
		return 0
	}
	return s.Drift.Repairs
}
