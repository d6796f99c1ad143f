package agent

import (
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// How many lines about unusable entries are logged: their text changes with the endpoints that
// tenants write.
const (
	// problemPause is the least time between two lines about one Service.
	problemPause = 10 * time.Minute
	// problemsAtOnce is how many lines about all Services are logged in problemsPeriod.
	problemsAtOnce = 10
	problemsPeriod = time.Minute
)

// problemLog logs which entries of Services cannot be used.
type problemLog struct {
	log   logr.Logger
	clock clock.PassiveClock

	mu      sync.Mutex
	lines   []problemLine // of the last problemPause, oldest first, so not many; guarded by mu
	omitted int           // lines since the last one; guarded by mu
}

type problemLine struct {
	service dataplane.ServiceName
	at      time.Time
}

// report logs a problem of a Service, unless there are too many lines.
func (p *problemLog) report(service dataplane.ServiceName, problem string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.lines = slices.DeleteFunc(p.lines, func(l problemLine) bool { return now.Sub(l.at) >= problemPause })
	recent := 0
	for _, l := range p.lines {
		if l.service == service {
			p.omitted++
			return
		}
		if now.Sub(l.at) < problemsPeriod {
			recent++
		}
	}
	if recent >= problemsAtOnce {
		p.omitted++
		return
	}
	p.log.Info("Part of a ServiceProxyRules cannot be used and is left out; the controller reverts manual changes",
		"service", service.String(), "problem", problem, "omittedLines", p.omitted)
	p.lines, p.omitted = append(p.lines, problemLine{service, now}), 0
}
