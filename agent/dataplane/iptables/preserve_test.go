package iptables

import (
	"context"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// startFromOld stands for a new agent on the same kernel that knows an older
// state of all Services only.
func (f *fixture) startFromOld(services ...*dataplane.Service) {
	f.restart()
	f.rules.Prune = false
	f.rules.Services = map[dataplane.ServiceName]*dataplane.Service{}
	f.rules.Preserve = map[dataplane.ServiceName]struct{}{}
	f.set(services...)
	for _, s := range services {
		f.rules.Preserve[s.Name] = struct{}{}
	}
}

// startFromNew gives the agent the desired state today.
func (f *fixture) startFromNew(services ...*dataplane.Service) {
	f.rules.Full, f.rules.Prune, f.rules.Preserve = true, true, nil
	f.rules.Services = map[dataplane.ServiceName]*dataplane.Service{}
	f.set(services...)
}

func oldAndNew() (old, today *dataplane.Service) {
	return testService("ns/svc", "172.30.0.1", dataplane.Port{NodePort: 3000, Available: true, Cluster: endpoints("10.180.0.1:80", "10.180.0.2:80")}),
		testService("ns/svc", "172.30.0.1", dataplane.Port{NodePort: 3000, Available: true, Cluster: endpoints("10.180.0.2:80", "10.180.0.3:80")})
}

func TestKeepChangesNothingThatIsThere(t *testing.T) {
	old, today := oldAndNew()
	none := testService("ns/svc", "172.30.0.1", dataplane.Port{NodePort: 3000})
	moved := testService("ns/svc", "172.30.0.9", dataplane.Port{NodePort: 3009, Available: true, Cluster: endpoints("10.180.0.9:80")})
	other := someServices(2)
	large := func(from, to int) *dataplane.Service {
		port := dataplane.Port{NodePort: 3000, Available: true}
		for i := from; i < to; i++ {
			port.Cluster = append(port.Cluster, hugeEndpoint(i))
		}
		return testService("ns/svc", "172.30.0.1", port)
	}
	for name, tt := range map[string]struct{ old, kernel *dataplane.Service }{
		"the same":                     {old, old},
		"other endpoints":              {old, today},
		"no endpoints any more":        {old, none},
		"endpoints that are new":       {none, old},
		"another address and nodePort": {old, moved},
		"other parts":                  {large(0, flatAtMost+1), large(flatAtMost, 5*flatAtMost)},
		"parts that are one chain":     {large(0, flatAtMost+1), large(0, flatAtMost)},
		"one chain that is in parts":   {large(0, flatAtMost), large(1, flatAtMost+2)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.set(append(other, tt.kernel)...)
			f.apply()
			before := f.kernel.save()
			f.startFromOld(append(other, tt.old)...)
			if result := f.apply(); result.ServicesChanged != 0 {
				t.Errorf("changed %d Services", result.ServicesChanged)
			}
			for _, write := range f.kernel.writes {
				t.Errorf("written:\n%s", write)
			}
			if diff := cmp.Diff(before, f.kernel.save()); diff != "" {
				t.Errorf("the kernel (-before +after):\n%s", diff)
			}
			d, err := f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{})
			if err != nil || d.Count != 0 {
				t.Errorf("verification: %v, %q", err, d.Examples)
			}
			f.startFromNew(append(other, tt.kernel)...)
			f.check(f.apply())
			if len(f.kernel.writes) > 0 {
				t.Errorf("today's state rewrites: %q", f.kernel.writes)
			}
		})
	}
}

func TestKeepAddsWhatIsMissing(t *testing.T) {
	old, today := oldAndNew()
	other := someServices(3)
	chainOf := func(service *dataplane.Service, prefix string) chainID {
		plan := testConfig(t).planService(service)
		for _, c := range plan.chains {
			if strings.HasPrefix(c.name, prefix) {
				return chainID{nat, c.name}
			}
		}
		t.Fatal("no such chain")
		return chainID{}
	}
	for name, damage := range map[string]func(f *fixture){
		"all of nat is flushed": func(f *fixture) {
			for _, id := range f.kernel.chains() {
				if id.table == nat {
					f.kernel.set(t, id)
				}
			}
		},
		"the chain of a Service is emptied":   func(f *fixture) { f.kernel.set(t, chainOf(other[0], prefixCluster)) },
		"the chain of an endpoint is emptied": func(f *fixture) { f.kernel.set(t, chainOf(other[1], prefixEndpoint)) },
		"KUBE-SERVICES is emptied":            func(f *fixture) { f.kernel.set(t, chainID{nat, chainServices}) },
		"the jumps are gone":                  func(f *fixture) { f.kernel.set(t, chainID{nat, "PREROUTING"}); f.kernel.set(t, chainID{nat, "OUTPUT"}) },
		"one rule of KUBE-SERVICES is gone": func(f *fixture) {
			rules := f.kernel.chain(t, nat, chainServices)
			f.kernel.set(t, chainID{nat, chainServices}, rules[1:]...)
		},
		"the chain of the newer one is emptied":   func(f *fixture) { f.kernel.set(t, chainOf(today, prefixCluster)) },
		"the chain of an endpoint that both know": func(f *fixture) { f.kernel.set(t, chainOf(today, prefixEndpoint)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.set(append(other, today)...)
			f.apply()
			f.restart()
			damage(f)
			f.startFromOld(append(other, old)...)
			d, err := f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{})
			if err != nil || d.Count == 0 {
				t.Errorf("verification does not see it: %v", err)
			}
			f.apply()
			if d, err = f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{}); err != nil || d.Count != 0 {
				t.Errorf("not repaired: %v, %q", err, d.Examples)
			}
			// What is not behind today's state is whole.
			fresh := New(dataplane.IPv4, Options{Modes: twoModes(), SysctlDirectory: f.plane.sysctl})
			fresh.kernel = f.kernel
			rules := *f.rules
			rules.Preserve, rules.Services = nil, maps.Clone(rules.Services)
			delete(rules.Services, old.Name)
			if d, err := fresh.Verify(context.Background(), &rules, dataplane.VerifyOptions{}); err != nil || d.Count != 0 {
				t.Errorf("others are not whole: %v, %q", err, d.Examples)
			}
			f.startFromNew(append(other, today)...)
			f.check(f.apply())
		})
	}
}

// TestKeepThenTodaysStateOneByOne has Services come back one after the other,
// as partial syncs, in random worlds.
func TestKeepThenTodaysStateOneByOne(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		f := newFixture(t)
		for range 6 {
			f.set(randomService(rng))
		}
		old := maps.Clone(f.rules.Services)
		for range 3 {
			f.set(randomService(rng))
		}
		f.apply()
		today := maps.Clone(f.rules.Services)
		f.startFromOld()
		for name, svc := range old {
			f.set(svc)
			f.rules.Preserve[name] = struct{}{}
		}
		f.apply()
		for name, svc := range today {
			delete(f.rules.Preserve, name)
			f.set(svc)
			f.rules.Full = rng.IntN(2) == 0
			f.apply()
		}
		f.rules.Full, f.rules.Prune = true, true
		f.check(f.apply())
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestKeepIsNoDrift: what is newer in the kernel is no interference, what
// others remove after an Apply is.
func TestKeepIsNoDrift(t *testing.T) {
	old, today := oldAndNew()
	other := someServices(2)
	f := newFixture(t)
	f.set(append(other, today)...)
	f.apply()
	f.startFromOld(append(other, old)...)
	f.apply()
	audit, err := f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{Audit: true})
	if err != nil || len(audit.Findings) > 0 {
		t.Errorf("audit: %v, %v", err, audit.Findings)
	}
	f.rules.Full = true
	f.apply()
	f.kernel.set(t, chainID{nat, chainServices})
	d, err := f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{})
	if err != nil || d.Count == 0 || !d.Drifted {
		t.Errorf("verification: %v, %+v", err, d)
	}
}
