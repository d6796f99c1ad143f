package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables"
	"github.com/nodeproxy-io/nodeproxy/agent/drift"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// inOwnNamespace runs the calling test in a process with a network namespace of
// its own, because the programs that an agent runs are started by any of its
// threads. It returns true in that process.
func inOwnNamespace(t *testing.T) bool {
	t.Helper()
	const variable = "NODEPROXY_TEST_NAMESPACE"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v", "-test.timeout=20m")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Log("\n" + string(out))
	if err != nil {
		t.Error(err)
	} else if !strings.Contains(string(out), "--- PASS: "+t.Name()+" (") {
		t.Errorf("%s did not run in the other process", t.Name())
	}
	return false
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// liveNode is an agent with the real kernel under it, but without an API server.
type liveNode struct {
	*testing.T
	*Agent
	rig       *rig
	directory string // of the iptables programs
	// plane makes a data plane of the node's mode.
	plane func(dataplane.Family) dataplane.Dataplane
	// first is how long the first set took, firstCPU what of a processor.
	first, firstCPU time.Duration
}

// newLiveNode is a node in mode IPTables, with programs of one variant.
func newLiveNode(t *testing.T, program string, services int) *liveNode {
	t.Helper()
	n := &liveNode{T: t, directory: t.TempDir()}
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%s not found: apt-get install iptables", program)
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, end := range []string{"", "-restore", "-save"} {
			if err := os.Symlink(path, filepath.Join(n.directory, name+end)); err != nil {
				t.Fatal(err)
			}
		}
	}
	programs, commits := iptables.NewPrograms(n.directory, ""), &iptables.Commits{}
	n.plane = func(family dataplane.Family) dataplane.Dataplane {
		return iptables.New(family, iptables.Options{Programs: programs, Commits: commits})
	}
	n.start(services)
	return n
}

// newLiveNFTables is a node in mode NFTables, whose table other programs may change.
func newLiveNFTables(t *testing.T, services int) *liveNode {
	t.Helper()
	n := &liveNode{T: t, plane: func(family dataplane.Family) dataplane.Dataplane {
		return nftables.New(family, nftables.Options{Shared: true})
	}}
	n.start(services)
	return n
}

// start gives a kernel Services with ten endpoints each, one of them with an endpoint that answers, and
// watches it until the test ends.
func (n *liveNode) start(services int) {
	n.Helper()
	t := n.T
	command(t, "ip", "link", "set", "lo", "up")
	command(t, "ip", "address", "add", "10.180.0.1/32", "dev", "lo")
	command(t, "ip", "route", "add", "local", "10.96.0.0/16", "dev", "lo") // or there is no way to cluster IPs
	n.answer("10.180.0.1:8080")

	client, err := apiclient.New(&rest.Config{Host: "https://192.0.2.10:6443"})
	if err != nil {
		t.Fatal(err)
	}
	planes := map[dataplane.Family]dataplane.Dataplane{}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		planes[family] = n.plane(family)
	}
	n.Agent, err = New(Options{
		NodeName: "node-1", Client: client, Probe: (&answers{list: []string{""}}).probe,
		Clock: clock.RealClock{}, Dataplanes: planes, Log: logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.fill(services)
	n.run()
}

// answer accepts connections at an address.
func (n *liveNode) answer(address string) {
	n.Helper()
	l, err := net.Listen("tcp4", address)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
}

const liveService = "10.96.255.1:80"

// fill gives the agent its Services.
func (n *liveNode) fill(services int) {
	n.rig = &rig{Store: n.store, t: n.T, Objects: agenttest.Objects{Version: 10}}
	objects := []*v1alpha1.ServiceProxyRules{n.rig.Service("live", 1, func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.ClusterIPs = []string{"10.96.255.1"}
		s.Ports[0].Endpoints[0].Addresses = []string{"10.180.0.1:8080"}
	})}
	names := []string{"shop.live"}
	for i := range services - 1 {
		name := fmt.Sprintf("s%d", i)
		names = append(names, "shop."+name)
		objects = append(objects, n.rig.Service(name, 1, func(s *v1alpha1.ServiceProxyRulesSpec) {
			s.ClusterIPs = []string{fmt.Sprintf("10.96.%d.%d", i/250, 2+i%250)}
			group := &s.Ports[0].Endpoints[0]
			group.Addresses = nil
			for j := range 10 {
				group.Addresses = append(group.Addresses, fmt.Sprintf("10.%d.%d.%d:8080", 100+j, i/250, 2+i%250))
			}
			slices.Sort(group.Addresses)
		}))
	}
	n.rig.SetServices(objects)
	n.rig.SetInventory(agenttest.InventoryOf(names...))
	n.rig.SetRules(n.rig.Node(func(s *v1alpha1.NodeProxyRulesSpec) {
		s.Node.Addresses = []string{"192.0.2.21"}
		s.Settings.Sync.VerifyIntervalSeconds = new(int32(3600)) // what is noticed is noticed otherwise
	}))
}

// run starts what the agent does with the kernel, and waits for its first set.
func (n *liveNode) run() {
	n.Helper()
	hold(n.T, n.Agent)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	n.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { n.loop.Run(ctx) })
	wg.Go(func() { n.fanout.Watch(ctx, n.noticed) })
	start, cpu := time.Now(), cpuTime(n.T)
	n.changed()
	n.loop.Trigger()
	n.until("the first set", func() bool { s := n.store.Snapshot(); return s.Done && s.OldestPending.IsZero() })
	n.first, n.firstCPU = time.Since(start), cpuTime(n.T)-cpu
	n.until("a connection", func() bool { return n.connects() })
}

func (n *liveNode) until(what string, holds func() bool) {
	n.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !holds(); pass(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("waited in vain for %s", what)
		}
	}
}

func (n *liveNode) connects() bool {
	c, err := net.DialTimeout("tcp4", liveService, 50*time.Millisecond)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// modify runs a command that modifies rules and returns how long it took from then
// until all are back and a connection works, or 20 s have passed.
func (n *liveNode) modify(args ...string) (repaired, connected time.Duration) {
	n.Helper()
	before := repairs(n.Agent)
	done := make(chan time.Duration, 1)
	start := time.Now()
	command(n.T, args[0], args[1:]...)
	go func() {
		for !n.connects() && time.Since(start) < 2*time.Minute {
			pass(5 * time.Millisecond)
		}
		done <- time.Since(start)
	}()
	n.until(strings.Join(args, " ")+" to be repaired", func() bool { return repairs(n.Agent) > before })
	repaired = time.Since(start)
	return repaired, <-done
}

// intact reports how the kernel differs from the desired state by a reading of its own.
func (n *liveNode) intact() {
	n.Helper()
	for family, ruleset := range n.store.Verifiable() {
		ruleset.Full = true
		d, err := n.plane(family).Verify(context.Background(), ruleset, dataplane.VerifyOptions{})
		if err != nil || d.Count != 0 {
			n.Errorf("%s after the repair: %+v, %v", family, d, err)
		}
	}
}

// repairSizes are the numbers of Services in tests of repairs. NODEPROXY_REPAIR_SIZES gives others.
func repairSizes(t *testing.T, sizes ...int) []int {
	t.Helper()
	if text := os.Getenv("NODEPROXY_REPAIR_SIZES"); text != "" {
		sizes = nil
		for word := range strings.FieldsSeq(text) {
			size, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// TestTimeOfRepairsNFTables measures how long it takes from a change by another program until the table is
// as it was.
func TestTimeOfRepairsNFTables(t *testing.T) {
	for _, change := range []struct {
		name, command string
		sizes         []int // at 5,000 Services, limits are five times what is promised
	}{
		{"element", "delete element ip nodeproxy service-ips { 10.96.255.1 . tcp . 80 }", []int{100, 5000}},
		{"chain", "flush chain ip nodeproxy nat-prerouting", []int{5000}},
		{"services", "flush map ip nodeproxy service-ips", []int{100}},
		{"endpoints", "flush map ip nodeproxy endpoints", []int{100}},
		{"table", "delete table ip nodeproxy", []int{100}},
		{"ruleset", "flush ruleset", []int{100}},
	} {
		for _, size := range repairSizes(t, change.sizes...) {
			t.Run(fmt.Sprintf("%s/%d", change.name, size), func(t *testing.T) {
				if inOwnNamespace(t) {
					limit := 500 * time.Millisecond
					if change.name != "element" && change.name != "chain" { // which do not depend on the size
						limit += time.Duration(size) * time.Millisecond / 4
					}
					measureRepairNFTables(t, change.command, size, limit)
				}
			})
		}
	}
}

func measureRepairNFTables(t *testing.T, change string, services int, limit time.Duration) {
	t.Helper()
	n := newLiveNFTables(t, services)
	best := time.Hour
	for range 2 { // the next one would wait
		n.loopRests()
		repaired, connected := n.modify("nft", change)
		best = min(best, max(repaired, connected))
	}
	n.Logf("%d Services x 10, nft %s: repaired after %d ms (first load: %d ms)", services, change, best.Milliseconds(), n.first.Milliseconds())
	n.intact()
	if best > limit {
		t.Errorf("the faster of two repairs took %s, more than %s", best, limit)
	}
}

// TestTimeOfRepairs measures how long it takes from a flush until all rules are back.
func TestTimeOfRepairs(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, size := range repairSizes(t, 100, 1000) {
			t.Run(fmt.Sprintf("%s/%d", variant, size), func(t *testing.T) {
				if inOwnNamespace(t) {
					measureRepair(t, "xtables-"+variant+"-multi", size)
				}
			})
		}
	}
}

func measureRepair(t *testing.T, program string, services int) {
	t.Helper()
	n := newLiveNode(t, program, services)
	tool := filepath.Join(n.directory, "iptables")
	best := time.Hour
	for range 2 { // the next one would wait
		n.loopRests()
		before := cpuTime(t)
		repaired, connected := n.modify(tool, "-t", "nat", "-F")
		n.Logf("%d Services x 10, iptables -t nat -F: all rules back after %d ms, a connection works after %d ms (first load: %d ms); CPU, with the flush and the test: %d ms (first load: %d ms)",
			services, repaired.Milliseconds(), connected.Milliseconds(), n.first.Milliseconds(), (cpuTime(t) - before).Milliseconds(), n.firstCPU.Milliseconds())
		best = min(best, max(repaired, connected))
	}
	n.intact()
	// On a busy machine everything takes longer.
	if limit := max(2*time.Second, 3*n.first); best > limit {
		t.Errorf("the faster of two repairs took %s, more than %s", best, limit)
	}
	n.loopRests()
	repaired, _ := n.modify(tool, "-t", "nat", "-D", "KUBE-SERVICES", "1")
	n.Logf("%d Services x 10, one rule deleted: back after %d ms", services, repaired.Milliseconds())
	n.intact()
}

// TestAFlushAfterHarmlessChangesIsRepairedAtOnce: that nothing was wrong when it
// was looked before does not keep a repair waiting.
func TestAFlushAfterHarmlessChangesIsRepairedAtOnce(t *testing.T) {
	if !inOwnNamespace(t) {
		return
	}
	n := newLiveNode(t, "xtables-nft-multi", 1000)
	tool := filepath.Join(n.directory, "iptables")
	checks := func() float64 { return counted(t, n.Agent, "verifications_total", "result")["same"] }
	n.loopRests()
	for range drift.CleanChecks + 1 {
		before := checks()
		for _, what := range []string{"-A", "-D"} {
			command(t, tool, "-t", "nat", what, "KUBE-MARK-MASQ", "-s", "192.0.2.99", "-j", "RETURN")
		}
		n.until("a check", func() bool { return checks() > before })
	}
	repaired, connected := n.modify(tool, "-t", "nat", "-F")
	n.Logf("all rules back after %d ms, a connection works after %d ms (first load: %d ms)", repaired.Milliseconds(), connected.Milliseconds(), n.first.Milliseconds())
	// On a busy machine everything takes longer.
	if limit := max(4*time.Second, 4*n.first); max(repaired, connected) > limit {
		t.Errorf("the repair took %s, more than %s", max(repaired, connected), limit)
	}
	n.intact()
}

// loopRests waits until the agent has nothing to do.
func (n *liveNode) loopRests() {
	n.Helper()
	n.until("the agent to rest", func() bool {
		_, err := os.Stat("/proc/self") // gives way
		return err == nil && n.loop.Overdue() == 0 && n.store.Snapshot().OldestPending.IsZero()
	})
}
