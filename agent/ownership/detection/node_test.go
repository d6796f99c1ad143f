package detection

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ownNamespace gives the test a network namespace of its own, which goes with
// its thread.
func ownNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	run(t, "ip link set lo up")
}

func run(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// TestIndicatorsInTheKernel makes each indicator with the usual tools.
func TestIndicatorsInTheKernel(t *testing.T) {
	for _, tt := range []struct {
		name         string
		make, unmake []string
		appears      bool
		indicator    string
	}{
		{name: "kube-ipvs0", make: []string{"ip link add kube-ipvs0 type veth peer name other0"}, unmake: []string{"ip link del kube-ipvs0"}, appears: true, indicator: "device kube-ipvs0 has appeared"},
		{name: "nftables, IPv4", make: []string{"nft add table ip kube-proxy"}, unmake: []string{"nft delete table ip kube-proxy"}, appears: true, indicator: "table ip kube-proxy has appeared"},
		{name: "nftables, IPv6", make: []string{"nft add table ip6 kube-proxy"}, unmake: []string{"nft delete table ip6 kube-proxy"}, appears: true, indicator: "table ip6 kube-proxy has appeared"},
		{name: "canary, IPv4", make: []string{"xtables-nft-multi iptables -t mangle -N KUBE-PROXY-CANARY"}, unmake: []string{"xtables-nft-multi iptables -t mangle -X KUBE-PROXY-CANARY"}, appears: true, indicator: "table mangle of IPv4 (nf_tables) has appeared"},
		{name: "canary, IPv6", make: []string{"xtables-nft-multi ip6tables -t nat -N KUBE-PROXY-CANARY"}, unmake: []string{"xtables-nft-multi ip6tables -t nat -X KUBE-PROXY-CANARY"}, appears: true, indicator: "table nat of IPv6 (nf_tables) has appeared"},
		{name: "canary, legacy IPv4", make: []string{"xtables-legacy-multi iptables -w -t mangle -N KUBE-PROXY-CANARY"}, unmake: []string{"xtables-legacy-multi iptables -w -t mangle -X KUBE-PROXY-CANARY"}, appears: true, indicator: "table mangle of IPv4 (legacy) has appeared"},
		{name: "canary, legacy IPv6", make: []string{"xtables-legacy-multi ip6tables -w -t mangle -N KUBE-PROXY-CANARY"}, unmake: []string{"xtables-legacy-multi ip6tables -w -t mangle -X KUBE-PROXY-CANARY"}, appears: true, indicator: "table mangle of IPv6 (legacy) has appeared"},
		{name: "kube-router", make: []string{"ip link add kube-dummy-if type veth peer name other0"}, unmake: []string{"ip link del kube-dummy-if"}, indicator: "kube-router"},
		{name: "Calico", make: []string{"ip link add bpfin.cali type veth peer name bpfout.cali"}, unmake: []string{"ip link del bpfin.cali"}, indicator: "Calico"},
		{name: "OVN-Kubernetes", make: []string{"ip link add ovn-k8s-mp0 type veth peer name other0"}, unmake: []string{"ip link del ovn-k8s-mp0"}, indicator: "OVN-Kubernetes"},
		{name: "Antrea", make: []string{"ip link add antrea-gw0 type veth peer name other0", "ip link set antrea-gw0 up", "ip route add 169.254.0.253 dev antrea-gw0"}, unmake: []string{"ip route del 169.254.0.253 dev antrea-gw0"}, indicator: "Antrea"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ownNamespace(t)
			s := newNodeSpotter(t)
			begin(t, s)
			expect := func(when, want string) {
				t.Helper()
				if indicator := detect(t, s); !strings.Contains(indicator, want) || want == "" && indicator != "" {
					t.Errorf("%s: indicator %q, want %q", when, indicator, want)
				}
			}
			expect("nothing is there", "")
			for _, command := range tt.make {
				run(t, command)
			}
			expect("it is there", tt.indicator)
			for _, command := range tt.unmake {
				run(t, command)
			}
			expect("it is gone", "")
		})
	}
}

// TestTableMadeAgain: it is another one, even without a check in between.
func TestTableMadeAgain(t *testing.T) {
	for _, family := range []string{"ip", "ip6"} {
		ownNamespace(t)
		s := newNodeSpotter(t)
		run(t, "nft add table "+family+" kube-proxy")
		begin(t, s)
		run(t, "nft add chain "+family+" kube-proxy services")
		if indicator := detect(t, s); indicator != "" {
			t.Errorf("%s: what was there before: %q", family, indicator)
		}
		run(t, "nft delete table "+family+" kube-proxy")
		run(t, "nft add table "+family+" kube-proxy")
		if indicator := detect(t, s); !strings.Contains(indicator, "table "+family+" kube-proxy has appeared") {
			t.Errorf("%s: it was made again: %q", family, indicator)
		}
	}
}

// TestDetectionCreatesNothing: tables of the legacy variant exist once another program has
// asked for them.
func TestDetectionCreatesNothing(t *testing.T) {
	ownNamespace(t)
	s := newNodeSpotter(t)
	begin(t, s)
	detect(t, s)
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		if names, err := os.ReadFile("/proc/thread-self/net/" + file); err == nil && len(names) > 0 {
			t.Errorf("%s: %q", file, names)
		}
	}
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("nf_tables has %s, %v", out, err)
	}
}

func TestAntreaWithoutProxyAll(t *testing.T) {
	ownNamespace(t)
	run(t, "ip link add antrea-gw0 type veth peer name other0")
	run(t, "ip link set antrea-gw0 up")
	run(t, "ip link add eth0 type veth peer name other1")
	run(t, "ip address add 192.0.2.1/24 dev eth0")
	run(t, "ip link set eth0 up")
	run(t, "ip link set other1 up")
	run(t, "ip route add default dev eth0")
	if indicator := detect(t, newNodeSpotter(t)); indicator != "" {
		t.Errorf("indicator %q", indicator)
	}
}

// TestCiliumAgent answers at its socket as a Cilium agent does.
func TestCiliumAgent(t *testing.T) {
	directory, err := os.MkdirTemp("", "detection") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) }) // only what the test has made
	socket := filepath.Join(directory, "cilium.sock")
	n := &node{ciliumSocket: socket}
	if replaces, known := n.ciliumReplaces(t.Context()); replaces || known {
		t.Errorf("no socket: %v, %v", replaces, known)
	}
	answer := ""
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/healthz" {
			_, _ = w.Write([]byte(answer))
		}
	})}
	go func() { _ = server.Serve(listener) }() // until it is closed
	t.Cleanup(func() { _ = server.Close() })
	for mode, want := range map[string]bool{"True": true, "Strict": true, "False": false, "Disabled": false, "Partial": false, "Probe": false, "": false} {
		answer = `{"cilium":{"state":"Ok"},"kube-proxy-replacement":{"mode":"` + mode + `","features":{}}}`
		if replaces, known := n.ciliumReplaces(t.Context()); replaces != want || !known {
			t.Errorf("mode %q: %v, %v", mode, replaces, known)
		}
	}
	for _, answer = range []string{"", "{}", "no JSON", `{"kube-proxy-replacement":null}`} {
		if replaces, known := n.ciliumReplaces(t.Context()); replaces || known {
			t.Errorf("answer %q: %v, %v", answer, replaces, known)
		}
	}
}

// newNodeSpotter returns a Spotter of this node, without a Cilium agent.
func newNodeSpotter(t testing.TB) *Spotter {
	s := New(Options{Now: time.Now})
	s.place = &node{ciliumSocket: filepath.Join(t.TempDir(), "cilium.sock")}
	return s
}

// BenchmarkDetect is what each write and each second cost.
func BenchmarkDetect(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	s := newNodeSpotter(b)
	s.begun = true
	for b.Loop() {
		if _, err := s.OtherProxy(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
