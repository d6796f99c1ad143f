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

	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// statusPause is the least time between writes that are not urgent.
	statusPause = 5 * time.Second
	// firstStatusRetry and lastStatusRetry bound the pauses after failed writes.
	firstStatusRetry = 5 * time.Second
	lastStatusRetry  = 30 * time.Second
	// countsPause is the least time between writes of counts alone.
	countsPause = 5 * time.Minute
	// repairsPause is the least time between writes because of repaired rules: a single repair is
	// reported soon, many in a row together.
	repairsPause = time.Minute
	// differencePause is the same for another number of differences, failingPause for other endpoints that do
	// not accept connections.
	differencePause = time.Minute
	failingPause    = time.Minute
	// contestPause is the least time between writes against another writer of the status.
	contestPause = time.Second
	// statusTimeout bounds one write.
	statusTimeout = 10 * time.Second
)

// write writes the status of stored, the newest known version of the own NodeProxyRules, and returns the
// object that is stored then.
type write func(ctx context.Context, stored *v1alpha1.NodeProxyRules, status *v1alpha1.NodeProxyRulesStatus) (*v1alpha1.NodeProxyRules, error)

// Writer decides when the status is written. Only one goroutine uses it.
type Writer struct {
	clock   clock.PassiveClock
	write   write
	log     logr.Logger
	started time.Time
	// share returns a random number from 0 to 1, which spreads the retries of agents.
	share func() float64

	last     *v1alpha1.NodeProxyRules // as stored by the last write
	lastTime time.Time                // of the last write
	lastOf   map[urgency]time.Time    // of the last write of each urgency
	retryAt  time.Time                // no write before, if the last one failed
	retry    time.Duration            // the longest pause after that
	failure  string
}

// NewWriter returns a Writer of the status of an agent that started at a time.
func NewWriter(clk clock.PassiveClock, write write, log logr.Logger, started time.Time) *Writer {
	return &Writer{clock: clk, write: write, log: log, started: started, share: rand.Float64}
}

// urgency is how soon a status must be written.
type urgency int

const (
	notAtAll   urgency = iota
	withOthers         // only counts
	differing          // another number of differences
	repaired           // rules that other programs had changed
	failing            // other endpoints do not accept connections
	soon
	atOnce
	contested // another writer has changed the status
)

// pauses are the least times since the last write, and since the last one of the same urgency.
var pauses = map[urgency]struct{ last, same time.Duration }{
	withOthers: {last: countsPause},
	differing:  {last: statusPause, same: differencePause},
	repaired:   {last: statusPause, same: repairsPause},
	failing:    {last: statusPause, same: failingPause},
	soon:       {last: statusPause},
	contested:  {last: contestPause},
}

// Newest is the newest known object: the watched one, unless the last write returned a newer one.
func (w *Writer) Newest(watched *v1alpha1.NodeProxyRules) *v1alpha1.NodeProxyRules {
	if w.last != nil && w.last.UID == watched.UID && desired.CompareVersions(w.last.ResourceVersion, watched.ResourceVersion) > 0 {
		return w.last
	}
	return watched
}

// Write updates the stored status if that is due, and reports whether it has.
func (w *Writer) Write(ctx context.Context, s desired.Snapshot, f Facts) bool {
	if s.Own == nil || !s.Exists {
		return false
	}
	stored := w.Newest(s.Own)
	current := Build(s, f, stored.Status.Conditions)
	u := urgent(&current, &stored.Status)
	if u != notAtAll && w.last != nil && w.last.UID == stored.UID && !equality.Semantic.DeepEqual(stored.Status, w.last.Status) {
		u = contested
	}
	if !w.due(u, starting(s, f), s.Now, &stored.Status) {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	object, err := w.write(limited, stored, &current)
	now := w.clock.Now()
	if err != nil {
		if w.failure != err.Error() && ctx.Err() == nil {
			w.log.Error(err, "Could not write the status of the NodeProxyRules; retrying", "nodeProxyRules", stored.Name,
				"longestPause", lastStatusRetry.String(), "effect", "the rules in the kernel are not affected")
		}
		w.retry = min(max(2*w.retry, firstStatusRetry), lastStatusRetry)
		w.retryAt = now.Add(time.Duration(float64(w.retry) * (0.5 + w.share()/2)))
		w.failure = err.Error()
		return false
	}
	if w.lastOf == nil {
		w.lastOf = map[urgency]time.Time{}
	}
	w.last, w.lastTime, w.lastOf[u] = object, now, now
	w.retryAt, w.retry, w.failure = time.Time{}, 0, ""
	return true
}

func (w *Writer) due(u urgency, starting bool, now time.Time, stored *v1alpha1.NodeProxyRulesStatus) bool {
	if now.Before(w.retryAt) {
		return false
	}
	// After a restart the kernel still has what the stored status reports. A first state that is
	// applied soon does not change it.
	if w.last == nil && starting && now.Sub(w.started) < patience &&
		meta.FindStatusCondition(stored.Conditions, v1alpha1.ConditionProgrammed) != nil {
		return false
	}
	pause, known := pauses[u]
	return u == atOnce || known && now.Sub(w.lastTime) >= pause.last && now.Sub(w.lastOf[u]) >= pause.same
}

// starting reports whether nothing is known yet that deserves a status.
func starting(s desired.Snapshot, f Facts) bool {
	return !s.Done && s.Err == nil && s.Rejection == nil && f.Conflict() == ""
}

// urgent compares the current status to the stored one, without conditions of other types, which
// belong to other writers.
func urgent(current, stored *v1alpha1.NodeProxyRulesStatus) urgency {
	same := stored.DeepCopy()
	same.Conditions = nil
	sameReasons, sameMessages := true, true
	for i := range current.Conditions {
		c := &current.Conditions[i]
		o := meta.FindStatusCondition(stored.Conditions, c.Type)
		if o == nil {
			sameReasons = false
			continue
		}
		same.Conditions = append(same.Conditions, *o)
		sameReasons = sameReasons && o.Status == c.Status && o.Reason == c.Reason
		sameMessages = sameMessages && o.Message == c.Message
	}
	var differences, before int32 // 0 and 0 unless both are known
	if current.Difference != nil && stored.Difference != nil {
		differences, before = current.Difference.Count, stored.Difference.Count
	}
	switch {
	case equality.Semantic.DeepEqual(current, same):
		return notAtAll
	case !sameReasons, current.Mode != stored.Mode, current.SettingsRevision != stored.SettingsRevision:
		return atOnce
	case !sameMessages, current.ObservedGeneration != stored.ObservedGeneration, !slices.Equal(current.Families, stored.Families),
		trackingMoved(current.Conntrack, stored.Conntrack):
		return soon
	case current.LocalEndpoints != stored.LocalEndpoints:
		return soon // unlike the other counts, it only concerns this node
	case differences == 0 && before > 0, current.Userspace == nil && stored.Userspace != nil:
		return soon // the stored status is worse than the actual one
	case repairsOf(current) != repairsOf(stored):
		return repaired
	case !slices.Equal(failingIn(current), failingIn(stored)):
		return failing
	case differences != before:
		return differing
	default:
		return withOthers
	}
}

func repairsOf(s *v1alpha1.NodeProxyRulesStatus) int64 {
	if s.Drift == nil {
		return 0
	}
	return s.Drift.Repairs
}

// failingIn identifies the endpoints that do not accept connections, and why, without counts.
func failingIn(s *v1alpha1.NodeProxyRulesStatus) (out []v1alpha1.FailingEndpoint) {
	if s.Userspace == nil {
		return nil
	}
	for _, e := range s.Userspace.Endpoints {
		out = append(out, v1alpha1.FailingEndpoint{Service: e.Service, Port: e.Port, Endpoint: e.Endpoint, Reason: e.Reason})
	}
	return out
}

// trackingMoved reports whether the statistics of connection tracking have changed so much that
// they are written without waiting for other changes.
func trackingMoved(current, stored *v1alpha1.ConntrackReport) bool {
	if current == nil || stored == nil {
		return current != stored
	}
	step := current.UsagePercent - stored.UsagePercent
	return max(step, -step) >= conntrack.UsageStep || current.Max != stored.Max || current.Buckets != stored.Buckets
}
