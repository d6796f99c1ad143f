package iptables

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestDriftIsDistinguishedFromWhatTheNodeChanged: that the rules no longer fit the node is
// the doing of no other program.
func TestDriftIsDistinguishedFromWhatTheNodeChanged(t *testing.T) {
	f := newFixture(t)
	f.rules.Node = testNode(nodePorts(v1alpha1.NodePortsCIDRs, v1alpha1.Enabled, "192.168.0.0/16"))
	f.at("192.168.0.2")
	f.set(someServices(3)...)
	f.apply()
	if d := f.verify(); d.Count != 0 || d.Drifted {
		t.Errorf("initially: %+v", d)
	}
	f.at("192.168.0.3")
	if d := f.verify(); d.Count == 0 || d.Drifted {
		t.Errorf("another address: %+v", d)
	}
	f.kernel.set(t, chainID{nat, chainMarkMasq})
	if d := f.verify(); !d.Drifted {
		t.Errorf("another address, and a flush: %+v", d)
	}
	f.at("192.168.0.2")
	if d := f.verify(); d.Count != 1 || !d.Drifted {
		t.Errorf("a flush: %+v", d)
	}
}

// TestARepairReadsAgainWhereOthersHaveWritten: what a verification has read holds
// only as long.
func TestARepairReadsAgainWhereOthersHaveWritten(t *testing.T) {
	f := newFixture(t)
	f.kernel.other = new(uint32)
	f.set(someServices(3)...)
	f.apply()
	undo := func(name string) {
		*f.kernel.other++
		f.kernel.set(t, chainID{nat, name})
	}
	repair := func(reads int) {
		t.Helper()
		before := f.kernel.reads
		f.rules.Full = true
		result := f.apply()
		if got := f.kernel.reads - before; got != reads {
			t.Errorf("%d reads, want %d", got, reads)
		}
		f.check(result)
	}
	undo(chainServices)
	f.verify()
	repair(0)
	repair(1) // once
	undo(chainServices)
	f.verify()
	undo(chainMarkMasq)
	repair(1)
}

// TestRepairedOnTheWay: a change of a Service finds what others have
// reverted and reports it, but not what it has itself written in part.
func TestRepairedOnTheWay(t *testing.T) {
	without := func(f *fixture, owner string) {
		chain := chainID{nat, chainServices}
		f.kernel.set(t, chain, slices.DeleteFunc(f.kernel.chain(t, chain.table, chain.name), func(s string) bool { return strings.Contains(s, owner) })...)
	}
	gone := func(f *fixture, name string) dataplane.Result {
		n := dataplane.ServiceName{Namespace: "ns", Name: name}
		delete(f.rules.Services, n)
		f.rules.Dirty[n] = struct{}{}
		return f.apply()
	}
	f := newFixture(t)
	f.set(someServices(4)...)
	f.apply()
	without(f, "ns/svc1")
	if result := gone(f, "svc1"); result.Kind != v1alpha1.SyncFull || result.Repaired.Count != 0 {
		t.Errorf("the rules of a deleted Service were reverted: %+v", result)
	}
	without(f, "ns/")
	result := gone(f, "svc2")
	if result.Kind != v1alpha1.SyncFull || result.Repaired.Count == 0 || !strings.Contains(strings.Join(result.Repaired.Examples, " "), "ns/svc3") || strings.Contains(strings.Join(result.Repaired.Examples, " "), "ns/svc2") {
		t.Errorf("all were reverted: %+v", result)
	}
	f.check(result)
}

// TestCanary: changes are noticed by the number of entries, or by anything that
// the kernel reports while it should not change.
func TestCanary(t *testing.T) {
	info := func(nat, filter, size uint32) [2]tableInfo {
		return [2]tableInfo{{numEntries: nat, size: size}, {numEntries: filter}}
	}
	var c canary
	first, second := &entries{total: 100, ours: 80}, &entries{total: 101, ours: 81}
	for _, step := range []struct {
		name     string
		expected *entries
		now      [2]tableInfo
		changed  bool
		sure     bool
	}{
		{"as it should be", first, info(60, 40, 9), false, false},
		{"still", first, info(60, 40, 9), false, false},
		{"of another size", first, info(60, 40, 10), true, false},
		{"which stays so", first, info(60, 40, 10), false, false},
		{"moved between the tables", first, info(61, 39, 10), true, false},
		{"others have one more", first, info(61, 40, 11), true, false},
		{"flushed", first, info(9, 40, 1), true, true},
		{"and still", first, info(9, 40, 1), false, false},
		{"repaired, with one rule more", second, info(61, 40, 11), false, false},
		{"known again, and reverted at once", first, info(61, 40, 11), true, false},
	} {
		change, changed := c.compare(step.expected, step.now)
		if changed != step.changed || change.Sure != step.sure {
			t.Errorf("%s: changed %t, %+v", step.name, changed, change)
		}
	}
}

// TestCanaryBesideRejectedServices: what the kernel has of a rejected Service is
// not known, but how much there is in all.
func TestCanaryBesideRejectedServices(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		rules := servicesOf(dataplane.IPv4, 3)
		plane := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")})
		mustApply(t, plane, rules)
		if !plane.kernel.legacy() {
			return
		}
		agrees := func(what string) {
			t.Helper()
			want, now := plane.entries.Load(), 0
			if count, known := plane.kernel.entries(); known {
				now = count
			}
			if want == nil || want.total != now {
				t.Errorf("%s: the kernel has %d entries, expected %+v", what, now, want)
			}
		}
		agrees("after the first pass")
		bad := testService("ns/svc1", "172.30.0.2", dataplane.Port{Available: true, Cluster: endpoints("10.180.77.7:80")})
		rejectLines(t, filepath.Join(directory, "iptables-restore"), "10.180.77.7")
		rules.Services[bad.Name], rules.Dirty[bad.Name] = bad, struct{}{}
		if result := mustApply(t, plane, rules); len(result.Rejected) != 1 {
			t.Fatalf("rejected: %v", result.Rejected)
		}
		agrees("with a rejected Service")
		rules.Full = true
		mustApply(t, plane, rules)
		agrees("after another full pass")
	})
}
