package tenants

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// watch has the second tenant create and use Services for at least some time, and until
// something has ended that is done meanwhile, whose context ends after that time. It returns how
// the second tenant fared. All that goes wrong for it fails the test.
func (r *rig) watch(name, limit string, least time.Duration, meanwhile func(context.Context) error) row {
	r.Helper()
	out := row{name: name, limit: limit, memory: map[string]int64{}, events: map[string]int{}}
	began := time.Now().Truncate(time.Second) // as events have it
	lines, err := r.logLines()
	if err != nil {
		r.Fatal(err)
	}
	for _, p := range r.processes() {
		if err := forgetPeak(p.PID()); err != nil {
			r.Fatal(err)
		}
	}
	l, err := load.Start(r.Context(), pace, r.targets())
	if err != nil {
		r.Fatal(err)
	}
	timed, cancel := context.WithTimeout(r.Context(), least)
	defer cancel()
	over, end := context.WithCancel(r.Context())
	defer end()
	var group sync.WaitGroup
	group.Go(func() {
		defer end()
		if meanwhile != nil {
			if err := meanwhile(timed); err != nil && !r.stolen.Load() {
				r.Errorf("%s: %v", name, err)
			}
		}
		<-timed.Done()
	})
	probes := r.probe(over, &group)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for over.Err() == nil {
		waited, err := r.useNew()
		if err != nil {
			if !r.stolen.Load() {
				r.Errorf("%s: %v", name, err)
			}
			break
		}
		out.services++
		out.waits = append(out.waits, waited...)
		select {
		case <-over.Done():
		case <-tick.C:
		}
	}
	<-over.Done()
	group.Wait()
	l.End()
	if r.stolen.Load() {
		r.FailNow()
	}
	for i, failure := range l.Failures() {
		if i < 10 {
			r.Errorf("%s: %s", name, failure)
		}
	}
	if n := len(l.Failures()); n > 0 {
		load.Lost(r, "%s: %d connections of the second tenant failed", name, n)
	}
	out.probes, out.control = probes()
	if err := r.noted(&out, began, lines); err != nil {
		r.Fatal(err)
	}
	for _, p := range r.processes() {
		used, err := p.Usage()
		if err != nil {
			r.Fatal(err)
		}
		program := "agent"
		if p == r.controller {
			program = "controller"
		}
		out.memory[program] = max(out.memory[program], int64(used.Peak>>10))
	}
	if err := install.Running(r.processes()...); err != nil {
		r.Fatalf("%s: %v", name, err)
	}
	r.Log(out)
	return out
}

// logLines counts the lines of the programs' logs.
func (r *rig) logLines() (int, error) {
	lines := 0
	for _, p := range r.processes() {
		text, err := os.ReadFile(p.Log())
		if err != nil {
			return 0, err
		}
		// The Nodes of the crowd have no agents, which is logged once for each.
		lines += bytes.Count(text, []byte("\n")) - bytes.Count(text, []byte(`"An agent does not respond"`))
	}
	return lines, nil
}

// noted adds to a row which events the attacker's objects got since it began, and how many lines the
// logs got, which had some.
func (r *rig) noted(to *row, began time.Time, lines int) error {
	now, err := r.logLines()
	if err != nil {
		return err
	}
	if to.lines = now - lines; to.lines > mostLines {
		for _, p := range r.processes() {
			r.Logf("%s: %s", to.name, p.Tail())
		}
	}
	events := &eventsv1.EventList{}
	if err := r.cluster.Client().List(r.Context(), events, client.InNamespace(attacker)); err != nil {
		return err
	}
	for _, e := range events.Items {
		if e.CreationTimestamp.After(began) {
			to.events[fmt.Sprintf("%s of %s %s", e.Reason, e.Regarding.Name, e.Regarding.UID)]++
		}
	}
	return nil
}
