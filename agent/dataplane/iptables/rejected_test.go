package iptables

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// besideRejected is a fixture with ten Services, on a kernel that rejects the
// endpoint 10.180.66.6 and reports what others write.
func besideRejected(t *testing.T) *fixture {
	f := newFixture(t)
	f.kernel.other = new(uint32)
	f.kernel.tables.Reject = func(line string) bool { return strings.Contains(line, "10.180.66.6") }
	f.rules.Rest = map[dataplane.ServiceName]struct{}{}
	f.set(someServices(10)...)
	f.check(f.apply())
	f.kernel.reads = 0
	return f
}

// bad is a Service of someServices with an endpoint that the kernel rejects.
func bad(i int) *dataplane.Service {
	return testService(fmt.Sprintf("ns/svc%d", i), fmt.Sprintf("172.30.0.%d", i+1),
		dataplane.Port{Available: true, Cluster: endpoints("10.180.66.6:80")})
}

// rest applies until nothing but the endpoint of another Service changes: what is
// rejected rests.
func (f *fixture) rest(names ...dataplane.ServiceName) {
	clear(f.rules.Rest)
	for _, name := range names {
		f.rules.Rest[name] = struct{}{}
	}
}

func (f *fixture) linesOf(change *dataplane.Service) int {
	f.Helper()
	f.set(change)
	if result := f.apply(); result.Kind != v1alpha1.SyncPartial || result.ServicesChanged != 1 {
		f.Fatalf("result %+v", result)
	}
	return strings.Count(strings.Join(f.kernel.writes, ""), "\n")
}

// TestOthersChangeAloneBesideARejectedService: a change of another Service costs as
// many lines as without the rejected one, and no look at the kernel.
func TestOthersChangeAloneBesideARejectedService(t *testing.T) {
	for _, several := range []int{1, 4} {
		f := besideRejected(t)
		change := func(last int) *dataplane.Service {
			return testService("ns/svc9", "172.30.0.10", dataplane.Port{Available: true, Cluster: endpoints("10.180.9.1:80", fmt.Sprintf("10.180.9.%d:80", last))})
		}
		without := f.linesOf(change(3))
		before := map[dataplane.ServiceName]struct{}{}
		for i := range several {
			f.set(bad(i))
			before[bad(i).Name] = struct{}{}
		}
		result := f.apply()
		if result.Kind != v1alpha1.SyncPartial || len(result.Rejected) != several || len(result.Suspected) != 0 {
			t.Fatalf("result %+v", result)
		}
		f.rules.Rest = before
		if with := f.linesOf(change(4)); with != without {
			t.Errorf("%d lines with %d rejected Services, %d without", with, several, without)
		}
		if f.kernel.reads != 0 {
			t.Errorf("the kernel was read %d times", f.kernel.reads)
		}
	}
}

// TestARejectedServiceIsTriedAlone, after others that have changed. What the kernel
// has of it stays until it is accepted.
func TestARejectedServiceIsTriedAlone(t *testing.T) {
	f := besideRejected(t)
	before := f.kernel.save()
	f.set(bad(3))
	f.apply()
	if diff := cmp.Diff(before, f.kernel.save()); diff != "" {
		t.Fatalf("a rejected change (-before +after):\n%s", diff)
	}
	f.rest()
	result := f.apply()
	if len(f.kernel.writes) != 1 || !strings.Contains(f.kernel.writes[0], "svc3") || strings.Contains(f.kernel.writes[0], "svc4") || result.Kind != v1alpha1.SyncPartial {
		t.Errorf("a retry: %+v, writes %q", result, f.kernel.writes)
	}
	if diff := cmp.Diff(before, f.kernel.save()); diff != "" {
		t.Errorf("a rejected retry (-before +after):\n%s", diff)
	}
	f.kernel.tables.Reject = nil
	if result = f.apply(); len(result.Rejected) != 0 || result.ServicesChanged != 1 || result.Kind != v1alpha1.SyncPartial {
		t.Errorf("result %+v", result)
	}
	f.check(result)
}

// TestARejectedServiceThatEnds goes with all that the kernel has of it.
func TestARejectedServiceThatEnds(t *testing.T) {
	f := besideRejected(t)
	f.set(bad(3))
	f.apply()
	f.remove(bad(3).Name)
	result := f.apply()
	if result.Kind != v1alpha1.SyncPartial || len(result.Rejected) != 0 {
		t.Errorf("result %+v", result)
	}
	f.check(result)
}

// TestRejectedByFilterAndNAT: what one table took before the other one rejected the Service is
// taken back, so that nothing is there twice later.
func TestRejectedByFilterAndNAT(t *testing.T) {
	f := besideRejected(t)
	before := f.kernel.save()
	two := bad(3)
	none := two.Ports[0]
	none.Name, none.Port, none.Available, none.Cluster = "none", 81, false, nil
	two.Ports = append(two.Ports, none)
	f.set(two, someServices(20)[19])
	result := f.apply()
	if len(result.Rejected) != 1 || result.Kind != v1alpha1.SyncPartial || result.ServicesChanged != 1 {
		t.Fatalf("result %+v", result)
	}
	f.remove(someServices(20)[19].Name)
	f.rest(two.Name)
	f.apply()
	if diff := cmp.Diff(before, f.kernel.save()); diff != "" {
		t.Errorf("rules (-before +after):\n%s", diff)
	}
	f.kernel.tables.Reject = nil
	f.rest()
	f.check(f.apply())
}

// TestRejectedAfterARestart: nothing is known of what the kernel has of a rejected Service.
// It is tried alone all the same, and nothing of it stays behind.
func TestRejectedAfterARestart(t *testing.T) {
	f := besideRejected(t)
	f.set(bad(3))
	f.apply()
	f.restart()
	result := f.apply()
	if len(result.Rejected) != 1 {
		t.Fatalf("rejected %v", result.Rejected)
	}
	f.kernel.reads = 0
	changed := bad(3)
	changed.ExternalIPs = nil
	f.set(changed)
	if result = f.apply(); result.Kind != v1alpha1.SyncPartial || f.kernel.reads != 0 || len(f.kernel.writes) != 1 {
		t.Errorf("a change of what is rejected: %+v, %d reads", result, f.kernel.reads)
	}
	f.kernel.tables.Reject = nil
	f.check(f.apply())
}

// TestRejectedRuleInAFullPass: a Service whose new rule in a shared chain is rejected
// retains the previous one.
func TestRejectedRuleInAFullPass(t *testing.T) {
	f := besideRejected(t)
	service := func(nodePort uint16) *dataplane.Service {
		return testService("ns/moves", "172.30.0.99", dataplane.Port{Available: true, NodePort: nodePort, Cluster: endpoints("10.180.8.1:80")})
	}
	f.set(service(30001))
	f.apply()
	before := f.kernel.save()
	f.kernel.tables.Reject = func(line string) bool { return strings.Contains(line, "--dport 30002") }
	f.set(service(30002))
	f.rules.Full = true
	if result := f.apply(); len(result.Rejected) != 1 || result.Kind != v1alpha1.SyncFull {
		t.Errorf("result %+v", result)
	}
	if diff := cmp.Diff(before, f.kernel.save()); diff != "" {
		t.Errorf("rules (-before +after):\n%s", diff)
	}
	f.kernel.tables.Reject = nil
	f.check(f.apply())
}

// TestVerificationBesideARejectedService does not take it for changed, finds what
// others have changed, and need not read the rest.
func TestVerificationBesideARejectedService(t *testing.T) {
	f := besideRejected(t)
	f.set(bad(3))
	f.apply()
	f.rest(bad(3).Name)
	verify := func() dataplane.Difference {
		t.Helper()
		d, err := f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for range 3 {
		if d := verify(); d.Count != 0 || f.kernel.reads != 1 {
			t.Errorf("%+v after %d reads", d, f.kernel.reads)
		}
	}
	f.kernel.set(t, chainID{nat, chainServices})
	*f.kernel.other++
	if d := verify(); d.Count == 0 || !d.Drifted {
		t.Fatalf("others have flushed a chain: %+v", d)
	}
	f.rules.Full = true
	result := f.apply()
	if len(result.Rejected) != 1 {
		t.Errorf("rejected %v", result.Rejected)
	}
	if writes := strings.Join(f.kernel.writes, ""); strings.Contains(writes, "10.180.66.6") {
		t.Errorf("what rests was tried: %s", writes)
	}
	if d := verify(); d.Count != 0 {
		t.Errorf("after the repair: %+v", d)
	}
	f.kernel.tables.Reject = nil
	f.rest()
	if result = f.apply(); len(result.Rejected) != 0 {
		t.Errorf("rejected %v", result.Rejected)
	}
	f.check(result)
}

// TestRejectedWhereOthersWrite: a rejection may be due to what others have changed.
// A full pass therefore looks, but once between two verifications, for all Services together.
func TestRejectedWhereOthersWrite(t *testing.T) {
	f := besideRejected(t)
	full := 0
	for i := range 5 {
		*f.kernel.other++
		f.set(bad(i))
		if result := f.apply(); result.Kind == v1alpha1.SyncFull {
			full++
		} else if len(result.Rejected) != i+1 {
			t.Errorf("rejected %v", result.Rejected)
		}
	}
	if full != 1 {
		t.Errorf("%d full passes", full)
	}
	if _, err := f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, id := range f.kernel.chains() {
		if id.table == nat {
			f.kernel.set(t, id)
		}
	}
	*f.kernel.other++
	f.kernel.tables.Reject = nil
	f.remove(someServices(9)[8].Name)
	result := f.apply()
	if result.Kind != v1alpha1.SyncFull || len(result.Rejected) != 0 {
		t.Errorf("others have removed rules: %+v", result)
	}
	f.check(result)
}

// TestManyRejectedAtOnce take few runs, others that change with them come first, and
// what there was no time to try alone is known for that.
func TestManyRejectedAtOnce(t *testing.T) {
	for _, mute := range []bool{false, true} {
		f := besideRejected(t)
		f.kernel.tables.RejectSilently = mute
		for i := range 200 {
			s := bad(i % 100)
			s.Name.Name = fmt.Sprintf("bad%03d", i)
			f.set(s)
		}
		good := testService("ns/svc9", "172.30.0.10", dataplane.Port{Available: true, Cluster: endpoints("10.180.9.9:80")})
		if !mute {
			f.set(good)
		}
		result := f.apply()
		if len(result.Rejected) != 200 || result.Kind != v1alpha1.SyncPartial || len(f.kernel.writes) > 3*maxPartialRuns {
			t.Errorf("mute %t: %d rejected, %s, %d runs", mute, len(result.Rejected), result.Kind, len(f.kernel.writes))
		}
		if !mute && (result.ServicesChanged != 1 || !strings.Contains(f.kernel.writes[1], "10.180.9.9") || len(result.Suspected) != 200-maxPartialRuns+1) {
			t.Errorf("%d changed, %d suspected, the second run wrote %q", result.ServicesChanged, len(result.Suspected), f.kernel.writes[1])
		}
	}
}

// TestAllOfOneNamespaceRejected: if all Services are of one namespace, the fault may be
// in each of them.
func TestAllOfOneNamespaceRejected(t *testing.T) {
	f := newFixture(t)
	f.kernel.tables.Reject = func(line string) bool { return strings.Contains(line, "-j DNAT") }
	f.set(someServices(3)...)
	if result := f.apply(); len(result.Rejected) != 3 {
		t.Errorf("rejected %v", result.Rejected)
	}
}
