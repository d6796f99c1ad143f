package doctor

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// soon is how long the controller and agents may take for what they do at once.
const soon = 2 * time.Second

// reported is how long an agent may take to report what has changed: it writes its
// status every five seconds at most, but for what is urgent.
const reported = 6 * time.Second

// patience is how long to wait before what is seen cannot be on its way any more: the
// controller takes its time by design where a Service has very many endpoints.
func (e *examination) patience() time.Duration {
	wait := soon
	if slices.ContainsFunc(e.found, func(f Finding) bool { return f.passing && f.Check == CheckNodes }) {
		wait = reported
	}
	for name := range e.slices {
		endpoints := 0
		for _, slice := range e.rendered(name) {
			endpoints += len(slice.Endpoints)
		}
		load := render.Load{Endpoints: int32(min(endpoints, math.MaxInt32))}
		if stored := e.rules[name]; stored != nil {
			load = load.Max(render.LoadOf(&stored.Spec, encoded(stored)))
		}
		if pace := render.Pace(load); pace > 0 {
			wait = max(wait, pace+time.Second)
		}
	}
	for _, node := range e.nodes {
		if pace := render.NodePace(encoded(&node.Spec)); pace > 0 {
			wait = max(wait, pace+time.Second)
		}
	}
	return wait
}

// encoded is how many bytes of JSON something takes that was read as JSON.
func encoded(object any) int {
	text, err := json.Marshal(object)
	if err != nil {
		return 0
	}
	return len(text)
}

// leaveUncertain drops what may be gone at a second look, which could not be taken, and
// says so.
func (e *examination) leaveUncertain(why error) {
	uncertain := map[Check][]string{}
	var certain []Finding
	for _, f := range e.found {
		if !f.passing {
			certain = append(certain, f)
			continue
		}
		uncertain[f.Check] = append(uncertain[f.Check], f.Name+f.where())
	}
	e.found = certain
	for check, names := range uncertain {
		slices.Sort(names)
		e.cannot(check, fmt.Sprintf("%s may be on the way, or wrong (%s): a second look failed: %v", output.Plural(len(names), "thing"), some(names), why))
	}
}
