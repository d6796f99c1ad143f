package iptables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// variants are the two programs behind the name iptables.
var variants = map[string]string{"nf_tables": "xtables-nft-multi", "legacy": "xtables-legacy-multi"}

// onRealKernel runs a test with each variant of iptables in a network namespace
// of its own, which goes with the test's thread.
func onRealKernel(t *testing.T, test func(t *testing.T, directory string)) {
	for variant, program := range variants {
		t.Run(variant, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("needs root: run sudo make test")
			}
			path, err := exec.LookPath(program)
			if err != nil {
				t.Fatalf("%s not found: apt-get install iptables", program)
			}
			runtime.LockOSThread() // and never unlock: the thread ends with the test
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				t.Fatal(err)
			}
			directory := t.TempDir()
			for _, name := range []string{"iptables", "ip6tables"} {
				for _, end := range []string{"", "-restore", "-save"} {
					if err := os.Symlink(path, filepath.Join(directory, name+end)); err != nil {
						t.Fatal(err)
					}
				}
			}
			run(t, "ip", "link", "set", "lo", "up")
			test(t, directory)
		})
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func newRuleset(services ...*dataplane.Service) *dataplane.Ruleset {
	r := &dataplane.Ruleset{
		Node: testNode(), Services: map[dataplane.ServiceName]*dataplane.Service{},
		Dirty: map[dataplane.ServiceName]struct{}{}, Full: true, Prune: true,
	}
	for _, s := range services {
		r.Services[s.Name] = s
	}
	return r
}

func mustApply(t *testing.T, d *Dataplane, r *dataplane.Ruleset) dataplane.Result {
	t.Helper()
	result, err := d.Apply(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.Full = false
	clear(r.Dirty)
	return result
}

// TestKernelHasThePlan makes random changes and compares what iptables-save
// prints to a fresh plan after each. The comparison itself is thereby proven on what
// the programs really print.
func TestKernelHasThePlan(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		for _, family := range families {
			holdThePlan(t, family, directory)
		}
	})
}

func holdThePlan(t *testing.T, family dataplane.Family, directory string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 7))
	random := func() *dataplane.Service {
		s := randomService(rng)
		if family == dataplane.IPv6 {
			dataplanetest.InIPv6(s)
		}
		return s
	}
	plane, rules := New(family, Options{Programs: NewPrograms(directory, "")}), newRuleset()
	if family == dataplane.IPv6 {
		rules.Node.Addresses = addrs("2001:db8::2")
	}
	for step := range 20 {
		for range 1 + rng.IntN(3) {
			s := random()
			rules.Services[s.Name] = s
			rules.Dirty[s.Name] = struct{}{}
		}
		if step%7 == 6 {
			delete(rules.Services, random().Name)
			rules.Full = true
		}
		result := mustApply(t, plane, rules)
		if len(result.Rejected) > 0 {
			t.Fatalf("%s: rejected: %v", family, result.Rejected)
		}
		fresh := New(family, Options{Programs: NewPrograms(directory, "")})
		d, err := fresh.Verify(context.Background(), rules, dataplane.VerifyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if d.Count != 0 || d.Counts[dataplane.Chains] != result.Counts[dataplane.Chains] || d.Counts[dataplane.Rules] != result.Counts[dataplane.Rules] {
			t.Fatalf("%s, step %d: result %+v, difference %+v", family, step, result, d)
		}
	}
}

func TestRestartRewritesNoRule(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		rules := newRuleset(someServices(20)...)
		mustApply(t, New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), rules)
		dump := func() string {
			if strings.HasSuffix(t.Name(), "nf_tables") {
				return run(t, "nft", "-a", "list", "ruleset") // with the handles of rules
			}
			return run(t, filepath.Join(directory, "iptables-save"), "-c")
		}
		before := dump()
		rules.Full = true
		if result := mustApply(t, New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), rules); result.ServicesChanged != 0 {
			t.Errorf("result %+v", result)
		}
		if diff := cmp.Diff(strings.Split(stamp(before), "\n"), strings.Split(stamp(dump()), "\n")); diff != "" {
			t.Errorf("a restart rewrote rules (-before +after):\n%s", diff)
		}
	})
}

// stamp takes out the lines in which iptables-save prints the time.
func stamp(save string) string {
	var out []string
	for l := range strings.SplitSeq(save, "\n") {
		if !strings.HasPrefix(l, "# ") {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}

func TestCleanupLeavesTheKernelAsItWas(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		tool := filepath.Join(directory, "iptables")
		run(t, tool, "-N", "KUBE-FIREWALL")
		run(t, tool, "-A", "INPUT", "-j", "KUBE-FIREWALL")
		run(t, tool, "-A", "OUTPUT", "-j", "KUBE-FIREWALL")
		run(t, tool, "-A", "KUBE-FIREWALL", "-s", "192.0.2.1", "-j", "DROP")
		run(t, tool, "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.1", "-j", "MASQUERADE")
		plane, rules := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), newRuleset(someServices(3)...)
		mustApply(t, plane, rules)
		if err := plane.Cleanup(context.Background(), dataplane.CleanupOptions{}); err != nil {
			t.Fatal(err)
		}
		var left []string
		for l := range strings.SplitSeq(run(t, filepath.Join(directory, "iptables-save")), "\n") {
			if strings.HasPrefix(l, "-A ") || strings.HasPrefix(l, ":KUBE") {
				left = append(left, l)
			}
		}
		for _, l := range left {
			if !strings.Contains(l, "KUBE-FIREWALL") && !strings.Contains(l, "192.0.2.1") {
				t.Errorf("left behind: %s", l)
			}
		}
		if !strings.Contains(strings.Join(left, "\n"), "-A KUBE-FIREWALL -s 192.0.2.1/32 -j DROP") {
			t.Errorf("the kubelet's rule is gone:\n%s", strings.Join(left, "\n"))
		}
	})
}

// TestLockedByAnotherProcess holds the lock that programs of the legacy variant
// share: nothing is half written, and the message explains what to do.
func TestLockedByAnotherProcess(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		nft := strings.HasSuffix(t.Name(), "nf_tables")
		file := filepath.Join(directory, "lock")
		t.Setenv("XTABLES_LOCKFILE", file)
		lock, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		plane, rules := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), newRuleset(someServices(3)...)
		_, err = plane.Apply(context.Background(), rules)
		if nft { // knows no lock: the kernel's transactions take its place
			if err != nil {
				t.Fatalf("the lock of the other variant stops this one: %v", err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), "another process holds the xtables lock") {
			t.Fatalf("error %v", err)
		}
		if out := run(t, filepath.Join(directory, "iptables-save")); strings.Contains(out, "KUBE-SVC") {
			t.Errorf("half written:\n%s", out)
		}
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN); err != nil {
			t.Fatal(err)
		}
		mustApply(t, plane, rules)
	})
}

func TestProgramsMissingOrTooOld(t *testing.T) {
	for name, c := range map[string]struct{ version, want string }{
		"missing":     {"", "not found; install the iptables package"},
		"far too old": {"iptables v1.4.21", "too old"},
		"too old":     {"iptables v1.6.1", "version 1.6.1, too old"},
		"strange":     {"busybox", "no iptables version found"},
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			if c.version != "" {
				for _, p := range []string{"iptables", "iptables-restore", "iptables-save"} {
					script := fmt.Sprintf("#!/bin/sh\necho '%s'\n", c.version)
					if err := os.WriteFile(filepath.Join(directory, p), []byte(script), 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			plane := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")})
			err := plane.Supported(context.Background(), &dataplane.Ruleset{})
			if !errors.Is(err, dataplane.ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if _, err := plane.Apply(context.Background(), newRuleset()); !errors.Is(err, dataplane.ErrUnsupported) {
				t.Errorf("apply: %v", err)
			}
		})
	}
}

// TestConnections opens real connections in a namespace that is node and
// endpoint at once.
func TestConnections(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		run(t, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "wire")
		for _, ip := range []string{"10.180.0.1/32", "10.180.1.1/32", "192.168.0.2/24"} {
			run(t, "ip", "address", "add", ip, "dev", "eth0")
		}
		run(t, "ip", "link", "set", "eth0", "up")
		run(t, "ip", "link", "set", "wire", "up")
		run(t, "ip", "route", "add", "default", "via", "192.168.0.1")
		serve(t, "10.180.0.1:80", "one")
		serve(t, "10.180.1.1:80", "two")

		both := dataplane.Port{Available: true, Cluster: endpoints("10.180.0.1:80", "10.180.1.1:80"), NodePort: 30080}
		plain := testService("ns/plain", "172.30.0.1", both)
		plain.ExternalIPs, plain.LoadBalancerIPs = addrs("203.0.113.1"), addrs("203.0.113.2")
		sticky := testService("ns/sticky", "172.30.0.2", dataplane.Port{Available: true, Cluster: both.Cluster})
		sticky.AffinitySeconds = 60
		local := testService("ns/local", "172.30.0.3", dataplane.Port{Available: true, Cluster: both.Cluster})
		local.InternalLocal = true
		empty := testService("ns/empty", "172.30.0.4", dataplane.Port{NodePort: 30084})
		closed := testService("ns/closed", "172.30.0.5", dataplane.Port{Available: true, Cluster: both.Cluster})
		closed.LoadBalancerIPs = addrs("203.0.113.5")
		closed.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}

		plane, rules := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), newRuleset(plain, sticky, local, empty, closed)
		mustApply(t, plane, rules)

		for _, to := range []string{"172.30.0.1:80", "203.0.113.1:80", "203.0.113.2:80", "192.168.0.2:30080", "127.0.0.1:30080"} {
			seen := map[string]int{}
			for range 40 {
				answer, err := dial(to)
				if err != nil {
					t.Fatalf("%s: %v", to, err)
				}
				seen[answer]++
			}
			if len(seen) != 2 {
				t.Errorf("%s: answers %v, want both endpoints", to, seen)
			}
		}
		first, err := dial("172.30.0.2:80")
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if answer, err := dial("172.30.0.2:80"); err != nil || answer != first {
				t.Fatalf("session affinity: %q after %q, %v", answer, first, err)
			}
		}
		for to, want := range map[string]error{
			"172.30.0.3:80":     os.ErrDeadlineExceeded, // no local endpoint: dropped
			"172.30.0.4:80":     syscall.ECONNREFUSED,   // no endpoint: rejected
			"192.168.0.2:30084": syscall.ECONNREFUSED,
			"203.0.113.5:80":    os.ErrDeadlineExceeded, // outside the source ranges
		} {
			if answer, err := dial(to); !errors.Is(err, want) {
				t.Errorf("%s: answer %q, error %v, want %v", to, answer, err, want)
			}
		}
		// An endpoint that goes gets no new connection.
		rules.Services[plain.Name] = testService("ns/plain", "172.30.0.1", dataplane.Port{Available: true, Cluster: both.Cluster[:1]})
		rules.Dirty[plain.Name] = struct{}{}
		if result := mustApply(t, plane, rules); result.Kind != v1alpha1.SyncPartial {
			t.Errorf("result %+v", result)
		}
		for range 20 {
			if answer, err := dial("172.30.0.1:80"); err != nil || answer != "one" {
				t.Fatalf("answer %q, %v", answer, err)
			}
		}
	})
}

// serve answers each connection with a name. It is called on the thread of the
// test's network namespace; the socket stays in it.
func serve(t *testing.T, address, name string) {
	t.Helper()
	l, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			c.Close()
		}
	}()
}

// dial connects and reads the answer. It must run on the thread of the test's
// network namespace, so it makes the socket itself.
func dial(to string) (string, error) {
	address := netip.MustParseAddrPort(to)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	// A rejection by the node itself reaches the socket with the second SYN only, a
	// second after the first: while it sends, the socket takes no errors.
	wait := unix.NsecToTimeval(int64(2500 * time.Millisecond))
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &wait); err != nil {
			return "", err
		}
	}
	err = uninterrupted(func() error {
		return unix.Connect(fd, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()})
	})
	switch {
	case errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EALREADY):
		return "", os.ErrDeadlineExceeded
	case err != nil:
		return "", err
	}
	buffer, n := make([]byte, 16), 0
	err = uninterrupted(func() (err error) { n, err = unix.Read(fd, buffer); return err })
	return string(buffer[:max(n, 0)]), err
}

// uninterrupted makes a system call again while a signal, as Go's scheduler sends them, interrupts it.
// A call of connect goes on with the connection that the one before it began.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// TestJumpsOfOthersAndManyStaleChains ends so many Services that their chains do
// not go in one call, while an administrator's rule jumps to one of them.
func TestJumpsOfOthersAndManyStaleChains(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		rules := newRuleset()
		for i := range 230 {
			s := benchService(i, 0)
			rules.Services[s.Name] = s
		}
		plane := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")})
		mustApply(t, plane, rules)
		used := plane.actual.services[dataplane.ServiceName{Namespace: "ns", Name: "svc200"}].chains[10].name
		tool := filepath.Join(directory, "iptables")
		run(t, tool, "-t", "nat", "-N", "MINE")
		run(t, tool, "-t", "nat", "-A", "MINE", "-j", used)
		for i := range 225 {
			delete(rules.Services, dataplane.ServiceName{Namespace: "ns", Name: fmt.Sprintf("svc%d", i)})
		}
		rules.Full = true
		result := mustApply(t, plane, rules)
		if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], used) {
			t.Errorf("warnings %q, want one about %s", result.Warnings, used)
		}
		if d, err := plane.Verify(t.Context(), rules, dataplane.VerifyOptions{}); err != nil || d.Count != 0 {
			t.Errorf("differences %+v, %v", d, err)
		}
		run(t, tool, "-t", "nat", "-F", "MINE")
		rules.Full = true
		result = mustApply(t, plane, rules)
		if d, err := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}).Verify(t.Context(), rules, dataplane.VerifyOptions{}); err != nil || d.Count != 0 || len(result.Warnings) != 0 {
			t.Errorf("differences %+v, %v, warnings %q", d, err, result.Warnings)
		}
	})
}

// TestRejectedByTheKernel gives a rule that the program reads and the nf_tables
// kernel does not take: the failure is not taken for a lock.
func TestRejectedByTheKernel(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		services := someServices(3)
		services[2].Name.Namespace = "other"
		rules := newRuleset(services...)
		rules.Node = testNode(func(s *v1alpha1.ProxySettings) { s.DetectLocal.ClusterCIDRs = []string{"0.0.0.0/0"} })
		_, err := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}).Apply(t.Context(), rules)
		if strings.HasSuffix(t.Name(), "legacy") { // takes this rule, which never matches
			if err != nil {
				t.Error(err)
			}
			return
		}
		if err == nil || strings.Contains(err.Error(), "lock") || !strings.Contains(err.Error(), "rejects all 3 Services") {
			t.Errorf("error %v", err)
		}
	})
}
