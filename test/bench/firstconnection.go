package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// firstConnections measures from the write of an EndpointSlice to the first
// connection on its new endpoint, and when what is between them happens.
func (s *subject) firstConnections(ctx context.Context, seen *sightings) error {
	probe := s.world.service(probeIndex)
	var took []float64
	var steps stepTimes
	for range s.moves {
		// Not in step with anything that happens once a second or so.
		pause := time.After(apart + 100*time.Millisecond + rand.N(time.Second))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause:
		}
		before, err := s.metrics.read(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		endpoint, err := s.world.moveProbe(ctx)
		if err != nil {
			return err
		}
		written := time.Now()
		at, err := waitForAnswer(ctx, s.node, probe, endpoint)
		if err != nil {
			return fmt.Errorf("%w; %s", err, s.process.Tail())
		}
		took = append(took, at.Sub(start).Seconds())
		var after syncs
		err = s.until(ctx, time.Minute, 20*time.Millisecond, func(now syncs) bool {
			after = now
			return now.count() > before.count()
		})
		if err != nil {
			return err
		}
		steps.add(&steps.written, start, written)
		slice, rules := seen.of(endpoint)
		steps.add(&steps.slice, start, slice)
		steps.add(&steps.rules, start, rules)
		if after.count() == before.count()+1 { // else it is not known which one it was
			steps.add(&steps.syncBegins, start, after.last.Add(-after.since(before)))
			steps.add(&steps.syncEnds, start, after.last)
		}
	}
	s.measurements.FirstConnectionP50 = quantile(took, .5)
	s.measurements.FirstConnectionP99 = quantile(took, .99)
	s.measurements.Steps = steps.medians()
	return nil
}

// stepMeasurements are when something happens between the write of an EndpointSlice and the first
// connection on its new endpoint: medians in seconds from the beginning of the write. 0: unknown.
type stepMeasurements struct {
	Written    float64 `json:"writtenSeconds"`
	Slice      float64 `json:"sliceWatchedSeconds"`
	Rules      float64 `json:"serviceProxyRulesWatchedSeconds,omitempty"`
	SyncBegins float64 `json:"syncBeginsSeconds"`
	SyncEnds   float64 `json:"syncEndsSeconds"`
}

// stepTimes are what stepMeasurements are the medians of.
type stepTimes struct{ written, slice, rules, syncBegins, syncEnds []float64 }

// add adds when something has happened; zero: it was not seen.
func (*stepTimes) add(to *[]float64, start, at time.Time) {
	if !at.IsZero() {
		*to = append(*to, at.Sub(start).Seconds())
	}
}

func (t *stepTimes) medians() stepMeasurements {
	median := func(values []float64) float64 {
		if len(values) == 0 {
			return 0
		}
		return quantile(values, .5)
	}
	return stepMeasurements{
		Written: median(t.written), Slice: median(t.slice), Rules: median(t.rules),
		SyncBegins: median(t.syncBegins), SyncEnds: median(t.syncEnds),
	}
}

// sightings are when watches have brought the probe's EndpointSlice and its ServiceProxyRules with
// an endpoint: as they do to the proxies, at about the same time.
type sightings struct {
	mu            sync.Mutex           // guards the following
	slices, rules map[string]time.Time // by address of the endpoint
}

// watchProbe watches until ctx is done.
func watchProbe(ctx context.Context, c *cluster.Cluster) (*sightings, error) {
	scheme, err := install.Scheme()
	if err != nil {
		return nil, err
	}
	with, err := client.NewWithWatch(c.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	seen := &sightings{slices: map[string]time.Time{}, rules: map[string]time.Time{}}
	for _, one := range []struct {
		list client.ObjectList
		name string
	}{
		{&discoveryv1.EndpointSliceList{}, stored(probeIndex).Slice(0).Name},
		{&v1alpha1.ServiceProxyRulesList{}, namespace + "." + serviceName(probeIndex)},
	} {
		events, err := with.Watch(ctx, one.list, client.MatchingFields{"metadata.name": one.name})
		if err != nil {
			return nil, fmt.Errorf("watching %s: %w", one.name, err)
		}
		context.AfterFunc(ctx, events.Stop)
		go func() {
			for event := range events.ResultChan() {
				seen.note(event.Object, time.Now())
			}
		}()
	}
	return seen, nil
}

func (s *sightings) note(object any, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := object.(type) {
	case *discoveryv1.EndpointSlice:
		for i := range o.Endpoints {
			s.slices[o.Endpoints[i].Addresses[0]] = now
		}
	case *v1alpha1.ServiceProxyRules:
		for _, port := range o.Spec.EndpointsByPort() {
			for _, group := range port {
				for endpoint := range group.All() {
					address, _, _ := strings.Cut(endpoint, ":")
					s.rules[address] = now
				}
			}
		}
	}
}

// of returns when an endpoint was seen last.
func (s *sightings) of(address string) (slice, rules time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slices[address], s.rules[address]
}
