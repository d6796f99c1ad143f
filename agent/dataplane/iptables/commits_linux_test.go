package iptables

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

func (f *fixture) verify() dataplane.Difference {
	f.Helper()
	d, err := f.plane.Verify(context.Background(), f.rules, dataplane.VerifyOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return d
}

// TestVerifyReadsWhatOthersWrote: the rules are read only where another program
// may have changed them.
func TestVerifyReadsWhatOthersWrote(t *testing.T) {
	f := newFixture(t)
	f.kernel.other = new(uint32)
	f.set(someServices(3)...)
	f.apply()
	for _, step := range []struct {
		name      string
		do        func()
		reads     int
		different bool
	}{
		{"after a full pass", func() {}, 1, false},
		{"nothing has happened", func() {}, 0, false},
		{"we have written", func() {
			f.set(testService("ns/svc1", "172.30.0.2", dataplane.Port{Available: true, Cluster: endpoints("10.180.9.9:80")}))
			f.apply()
		}, 0, false},
		{"others have written something else", func() { *f.kernel.other++ }, 1, false},
		{"and not again", func() {}, 0, false},
		{"others have removed our rules", func() {
			*f.kernel.other++
			f.kernel.set(t, chainID{nat, chainServices})
		}, 1, true},
		{"which stays so", func() {}, 1, true},
		{"a repair", func() { f.rules.Full = true; f.apply() }, 1, false}, // which knows what the kernel has
		{"after the repair", func() {}, 0, false},
	} {
		before := f.kernel.reads
		step.do()
		d := f.verify()
		if reads := f.kernel.reads - before; reads != step.reads || (d.Count > 0) != step.different {
			t.Errorf("%s: %d reads, difference %+v", step.name, reads, d)
		}
		if d.Count == 0 && (d.Counts[dataplane.Chains] != f.plane.tally.chains || d.Counts[dataplane.Rules] != f.plane.tally.rules || d.Counts[dataplane.Rules] == 0) {
			t.Errorf("%s: %d chains, %d rules", step.name, d.Counts[dataplane.Chains], d.Counts[dataplane.Rules])
		}
	}
	f.kernel.warn = []string{"the other variant"}
	if d := f.verify(); !slices.Equal(d.Warnings, f.kernel.warn) {
		t.Errorf("warnings %q without reading the rules", d.Warnings)
	}
	*f.kernel.other++
	f.verify() // reads, and the count begins anew
	before := f.kernel.reads
	for range 2 * (maxUnread + 1) {
		f.verify()
	}
	if reads := f.kernel.reads - before; reads != 2 {
		t.Errorf("%d reads where nothing happens", reads)
	}
}

// TestCommitsUnderWay: what is known of our writes, and only that, counts as
// ours. One that may have been committed and is not counted yet must not pass for
// another's and later hide one of theirs, and one that the kernel did not count
// must not hide any either.
func TestCommitsUnderWay(t *testing.T) {
	var kernel uint32
	c := Commits{count: func() (uint32, error) { return kernel, nil }}
	commit := func(counted uint32, err error) func() error {
		return func() error {
			if n, known := c.others(); known {
				t.Errorf("%d transactions of others, while one of ours is under way", n)
			}
			kernel += counted
			return err
		}
	}
	for _, step := range []struct {
		name   string
		write  func() error
		others uint32
	}{
		{"one of ours", func() error { return c.write(1, commit(1, nil)) }, 0},
		{"one of others", func() error { kernel++; return nil }, 1},
		{"a rejected one", func() error { return c.write(1, commit(0, errors.New("rejected"))) }, 1},
		{"one that is rejected in part", func() error { return c.write(2, commit(1, errors.New("rejected"))) }, 2},
		{"one that changes nothing", func() error { return c.write(1, commit(0, nil)) }, 2},
		{"one of others meanwhile", func() error { return c.write(1, commit(2, nil)) }, 4},
		{"two of ours at once", func() error {
			return c.write(1, func() error { return errors.Join(c.write(2, commit(2, nil)), commit(1, nil)()) })
		}, 4},
		{"two at once, one of them rejected", func() error {
			return c.write(1, func() error { return errors.Join(c.write(2, commit(2, nil)), errors.New("rejected")) })
		}, 6},
	} {
		before := c.own
		err := step.write()
		if n, known := c.others(); !known || n != step.others || c.busy != 0 {
			t.Errorf("%s: %v, %d of others, want %d; ours from %d to %d", step.name, err, n, step.others, before, c.own)
		}
	}
}

// countingKernel counts how often the real kernel is read.
type countingKernel struct {
	kernel
	reads int
}

func (k *countingKernel) read(ctx context.Context) (*kernelState, error) {
	k.reads++
	return k.kernel.read(ctx)
}

// TestKernelReportsWhoWrote: the real kernel counts our transactions as we do, of
// both families, and those of others besides.
func TestKernelReportsWhoWrote(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		commits := &Commits{}
		plane := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, ""), Commits: commits})
		counting := &countingKernel{kernel: plane.kernel}
		plane.kernel = counting
		rules := newRuleset(someServices(3)...)
		verify := func(what string, reads int, different bool) {
			t.Helper()
			if plane.kernel.legacy() {
				reads = 1 // that kernel does not report it
			}
			before := counting.reads
			d, err := plane.Verify(context.Background(), rules, dataplane.VerifyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if counting.reads-before != reads || (d.Count > 0) != different {
				t.Errorf("%s: %d reads, difference %+v", what, counting.reads-before, d)
			}
		}
		mustApply(t, plane, rules)
		verify("after the first pass", 1, false)
		verify("nothing has happened", 0, false)

		change := func(to string) {
			port := dataplane.Port{Available: to != ""}
			if to != "" {
				port.Cluster = endpoints(to)
			}
			s := testService("ns/svc1", "172.30.0.2", port)
			rules.Services[s.Name] = s
			rules.Dirty[s.Name] = struct{}{}
			mustApply(t, plane, rules)
		}
		// In nat alone, in filter and nat, and back.
		for _, to := range []string{"10.180.9.9:80", "", "10.180.9.8:80"} {
			change(to)
			verify("we have written "+to, 0, false)
		}
		other := newTools(dataplane.IPv4, NewPrograms(directory, ""), commits) // as another family's data plane
		if err := other.find(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := other.apply(context.Background(), "*nat\n:MINE - [0:0]\n-A MINE -j RETURN\nCOMMIT\n"); err != nil {
			t.Fatal(err)
		}
		verify("another data plane has written", 0, false)

		run(t, filepath.Join(directory, "iptables"), "-t", "filter", "-N", "OTHERS")
		verify("others have written something else", 1, false)
		run(t, filepath.Join(directory, "iptables"), "-t", "nat", "-F", chainServices)
		verify("others have flushed our chain", 1, true)

		// What changes nothing is not counted, and must not make up for a flush.
		rules.Full = true
		mustApply(t, plane, rules)
		rules.Full = false
		const empty = "*nat\n:EMPTY - [0:0]\nCOMMIT\n"
		for range 2 {
			if err := other.apply(context.Background(), empty); err != nil {
				t.Fatal(err)
			}
		}
		verify("after the repair", 1, false)
		if err := other.apply(context.Background(), empty); err != nil {
			t.Fatal(err)
		}
		run(t, filepath.Join(directory, "iptables"), "-t", "nat", "-F", chainServices)
		verify("others have flushed our chain after a write that changed nothing", 1, true)
	})
}
