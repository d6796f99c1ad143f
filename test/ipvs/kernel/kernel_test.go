package kernel

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func TestMain(m *testing.M) { uml.Main(m) }

// machine is what each test boots.
func machine() uml.Options { return uml.Options{MemoryMiB: 1024} }

// TestModules is about a loader of modules that rejects some initially.
func TestModules(t *testing.T) { uml.InKernel(t, machine(), modules) }

// TestMany measures.
func TestMany(t *testing.T) { uml.InKernel(t, machine(), many) }

func TestKernel(t *testing.T) { uml.InKernel(t, machine(), inKernel) }

func inKernel(t *testing.T) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(string(family), func(t *testing.T) {
			l := newLab(t, family)
			t.Run("Servers", l.servers)
			t.Run("Schedulers", l.schedulers)
			t.Run("Reals", l.reals)
			t.Run("Probe", l.probe)
			t.Run("Timeouts", l.timeouts)
			t.Run("Device", l.device)
			t.Run("Events", l.events)
			t.Run("Sets", l.sets)
			t.Run("SetsOfOthers", l.setsOfOthers)
			t.Run("LargeSet", l.largeSet)
			t.Run("Sysctls", l.sysctls)
			t.Run("Connections", l.connections)
		})
	}
	t.Run("SideBySide", sideBySide)
}

// lab is a Kernel, with what is needed to look at what it does.
type lab struct {
	ipvs.Kernel
	family dataplane.Family
}

func newLab(t *testing.T, family dataplane.Family) *lab {
	t.Helper()
	l := &lab{Kernel: ipvs.NewKernel(family, ""), family: family}
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	return l
}

// pick returns what is for the lab's family.
func pick[T any](l *lab, v4, v6 T) T {
	if l.family == dataplane.IPv6 {
		return v6
	}
	return v4
}

// run runs a program and returns what it prints.
func run(t *testing.T, line string) string {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput() //nolint:gosec // a test's own words
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// check fails the test where something has not gone as it should.
func check(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// report passes measurements to the test that has booted the machine, and prints them.
func report(t *testing.T, measurements any) {
	t.Helper()
	text, err := json.Marshal(measurements)
	check(t, err, uml.Report(text))
	fmt.Printf("%s\n", text)
}
