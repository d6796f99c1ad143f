package iptables

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// watched is a data plane on a real kernel that is watched.
type watched struct {
	*testing.T
	directory string
	family    dataplane.Family
	plane     *Dataplane
	rules     *dataplane.Ruleset
	changes   chan dataplane.Change
	start     time.Time // of what is to be noticed
}

// watch gives the kernel rules and watches them.
func watch(t *testing.T, family dataplane.Family, directory string, rules *dataplane.Ruleset) *watched {
	t.Helper()
	w := &watched{
		T: t, directory: directory, family: family, rules: rules,
		plane:   New(family, Options{Programs: NewPrograms(directory, "")}),
		changes: make(chan dataplane.Change, 1000), start: time.Now(),
	}
	mustApply(t, w.plane, rules)
	beside(t, func(ctx context.Context) {
		w.plane.Watch(ctx, func(c dataplane.Change) { w.changes <- c })
	})
	if w.nft() {
		w.await("the beginning") // what was before is unknown
	} else {
		w.settle()
	}
	return w
}

func (w *watched) nft() bool { return !w.plane.kernel.legacy() }

// run runs an iptables program of the family.
func (w *watched) run(end string, args ...string) string {
	w.Helper()
	return run(w.T, filepath.Join(w.directory, commandOf(w.family)+end), args...)
}

// await waits until a change is noticed.
func (w *watched) await(what string) dataplane.Change {
	w.Helper()
	select {
	case c := <-w.changes:
		w.Logf("%s: noticed %s after the start, by %q, sure: %t", what, time.Since(w.start).Round(100*time.Microsecond), c.By, c.Sure)
		return c
	case <-time.After(20 * time.Second):
		w.Fatalf("%s: not noticed", what)
		return dataplane.Change{}
	}
}

// settle lets the watch take in what the kernel has.
func (w *watched) settle() {
	w.Helper()
	if w.nft() {
		return // events come in order
	}
	// What the legacy kernel reports is compared to what was last seen.
	ctx, cancel := context.WithTimeout(w.Context(), 3*canaryPause)
	defer cancel()
	<-ctx.Done()
}

// repair verifies that the kernel differs, and repairs it.
func (w *watched) repair(what string) {
	w.Helper()
	w.verify(what, true)
	w.rules.Full = true
	mustApply(w.T, w.plane, w.rules)
	w.verify("after the repair of "+what, false)
}

func (w *watched) verify(what string, different bool) {
	w.Helper()
	d, err := w.plane.Verify(w.Context(), w.rules, dataplane.VerifyOptions{})
	if err != nil {
		w.Fatal(err)
	}
	if d.Count > 0 != different || d.Drifted != different {
		w.Errorf("%s: %+v", what, d)
	}
}

// quiet fails if something was noticed before a change that is.
func (w *watched) quiet(what string) {
	w.Helper()
	w.settle()
	w.start = time.Now()
	w.run("", "-t", "nat", "-I", chainMarkMasq, "-j", "RETURN")
	w.awaitNamed("a change after " + what)
	w.repair(what)
	for {
		select {
		case c := <-w.changes:
			if !w.nft() || c.By != "" {
				w.Errorf("%s: noticed something besides: %+v", what, c)
			}
		default:
			return
		}
	}
}

// awaitNamed waits until a change is noticed, and who made it, if the kernel reports
// that. If the kernel has not counted a write of a repair, because it changed nothing,
// an unknown program is suspected first.
func (w *watched) awaitNamed(what string) {
	w.Helper()
	for c := w.await(what); w.nft() && c.By == ""; {
		c = w.await("who that was")
	}
}

func servicesOf(family dataplane.Family, n int) *dataplane.Ruleset {
	rules := newRuleset()
	for _, s := range someServices(n) {
		if family == dataplane.IPv6 {
			dataplanetest.InIPv6(s)
		}
		rules.Services[s.Name] = s
	}
	if family == dataplane.IPv6 {
		rules.Node.Addresses = addrs("2001:db8::2")
	}
	return rules
}

// TestWatchNoticesWhatOthersUndo undoes rules in all the ways that are known
// from the field.
func TestWatchNoticesWhatOthersUndo(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		for _, family := range families {
			noticeWhatOthersUndo(t, family, directory)
		}
	})
}

func noticeWhatOthersUndo(t *testing.T, family dataplane.Family, directory string) {
	t.Helper()
	w := watch(t, family, directory, servicesOf(family, 3))
	service := ""
	for _, p := range w.plane.actual.services {
		service = p.chains[0].name
	}
	steps := []struct {
		name string
		do   func()
	}{
		{"flush of nat", func() { w.run("", "-t", "nat", "-F") }},
		{"flush of filter", func() { w.run("", "-F") }},
		{"flush and deletion of chains", func() { w.run("", "-t", "nat", "-F"); w.run("", "-t", "nat", "-X") }},
		{"deletion of a rule", func() { w.run("", "-t", "nat", "-D", chainServices, "1") }},
		{"deletion of a rule of a Service", func() { w.run("", "-t", "nat", "-D", service, "1") }},
		{"a rule of our own too many", func() { w.run("", "-t", "nat", "-A", chainServices, "-j", "RETURN") }},
		{"a jump removed from nat", func() { w.run("", strings.Fields("-t nat -D PREROUTING 1")...) }},
		{"a jump removed from filter", func() { w.run("", strings.Fields("-D FORWARD 1")...) }},
		{"a restore by another program", func() { w.restore("*nat\n:MINE - [0:0]\n-A MINE -j RETURN\nCOMMIT\n") }},
		{"a rule replaced", func() { w.run("", "-t", "nat", "-R", chainMarkMasq, "1", "-m", "mark", "--mark", "1", "-j", "RETURN") }},
	}
	if w.nft() {
		table := "ip"
		if family == dataplane.IPv6 {
			table = "ip6"
		}
		steps = append(steps, []struct {
			name string
			do   func()
		}{
			{"nft flush ruleset", func() { run(t, "nft", "flush", "ruleset") }},
			{"nft delete table", func() { run(t, "nft", "delete", "table", table, "nat") }},
			{"nft flush chain", func() { run(t, "nft", "flush", "chain", table, "nat", "POSTROUTING") }},
		}...)
	}
	for _, s := range steps {
		if s.name == "a rule replaced" {
			w.settle() // as many entries as before
		}
		w.start = time.Now()
		s.do()
		w.awaitNamed(string(family) + ", " + s.name)
		w.repair(s.name)
		w.drain()
	}
	w.settle()
	w.drain()
	w.quiet("the repairs")
}

// restore runs iptables-restore, which replaces tables.
func (w *watched) restore(input string) {
	w.Helper()
	w.runInput(input, "-restore")
}

func (w *watched) drain() {
	for {
		select {
		case <-w.changes:
		default:
			return
		}
	}
}

func (w *watched) runInput(input, end string, args ...string) {
	w.Helper()
	cmd := exec.Command(filepath.Join(w.directory, commandOf(w.family)+end), args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.Fatalf("%s: %v: %s", end, err, out)
	}
}

// TestWatchKnowsWhatIsOurs: what we write does not count, also where others write
// something else at the same time.
func TestWatchKnowsWhatIsOurs(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		w := watch(t, dataplane.IPv4, directory, servicesOf(dataplane.IPv4, 3))
		if !w.nft() {
			for i := range 10 {
				w.write(i)
			}
			w.quiet("writes of ours")
			return
		}
		run(t, "nft", "add table ip cni; add chain ip cni X")
		var noise sync.WaitGroup
		stop, begun := make(chan struct{}), make(chan struct{}, 1)
		noise.Add(1)
		beside(t, func(context.Context) {
			defer noise.Done()
			for {
				select {
				case <-stop:
					return
				case begun <- struct{}{}:
				default:
				}
				if out, err := exec.Command("nft", "add rule ip cni X counter").CombinedOutput(); err != nil {
					t.Errorf("nft: %v: %s", err, out)
					return
				}
			}
		})
		for i := range 30 {
			<-begun // so that there is some beside each
			w.write(i)
		}
		close(stop)
		noise.Wait()
		w.verify("after the writes", false)
		w.quiet("writes of ours beside those of others")
	})
}

// write changes a Service.
func (w *watched) write(i int) {
	w.Helper()
	s := testService("ns/svc1", "172.30.0.2", dataplane.Port{Available: true, Cluster: endpoints(fmt.Sprintf("10.180.9.%d:80", 1+i))})
	w.rules.Services[s.Name] = s
	w.rules.Dirty[s.Name] = struct{}{}
	if result := mustApply(w.T, w.plane, w.rules); result.Kind != v1alpha1.SyncPartial {
		w.Errorf("%+v", result)
	}
}

// TestWatchPausesWhileAllIsWritten: what others do meanwhile is noticed
// afterwards.
func TestWatchPausesWhileAllIsWritten(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		w := watch(t, dataplane.IPv4, directory, servicesOf(dataplane.IPv4, 3))
		if !w.nft() {
			return // nothing pauses
		}
		pass := func(do func()) {
			w.start = time.Now()
			err := w.plane.kernel.unwatched(func() error {
				do()
				return w.plane.kernel.unwatched(func() error { return nil }) // of another family
			})
			if err != nil {
				t.Error(err)
			}
		}
		pass(func() { w.write(1) })
		pass(func() { w.run("", "-t", "nat", "-D", chainServices, "1") })
		if c := w.await("a change meanwhile"); c.By != "" {
			t.Errorf("%+v: what is not reported is known", c)
		}
		w.repair("a change meanwhile")
		pass(func() {})
		w.quiet("passes without others")
	})
}
