package doctor

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// soon is how long the controller and agents may take for urgent work.
const soon = 2 * time.Second

// reported is how long an agent may take to report a change: it writes non-urgent changes
// of its status every five seconds at most.
const reported = 6 * time.Second

// patience is how long to wait until a finding cannot be transient: the controller paces
// updates of Services with very many endpoints.
func (e *examination) patience() time.Duration {
	wait := soon
	if slices.ContainsFunc(e.Found, func(f findings.Finding) bool { return f.Transient && f.Check == findings.CheckNodes }) {
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
	for _, node := range e.Nodes {
		if pace := render.NodePace(encoded(&node.Spec)); pace > 0 {
			wait = max(wait, pace+time.Second)
		}
	}
	return wait
}

// encoded is the size of an object as JSON.
func encoded(object any) int {
	text, err := json.Marshal(object)
	if err != nil {
		return 0
	}
	return len(text)
}

// dropUnconfirmed drops findings that may be transient, because the second examination
// failed, and skips their checks.
func (e *examination) dropUnconfirmed(why error) {
	uncertain := map[findings.Check][]string{}
	var certain []findings.Finding
	for _, f := range e.Found {
		if !f.Transient {
			certain = append(certain, f)
			continue
		}
		uncertain[f.Check] = append(uncertain[f.Check], f.Reason+f.Where())
	}
	e.Found = certain
	for check, names := range uncertain {
		slices.Sort(names)
		e.Skip(check, fmt.Sprintf("%s may be transient (%s), because the second examination failed: %v", output.Plural(len(names), "finding"), findings.Some(names), why))
	}
}
