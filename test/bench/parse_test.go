package main

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestParseTraffic(t *testing.T) {
	text := "Inter-|   Receive\n face |bytes\n" +
		"    lo:     5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n" +
		"  eth0: 12345 9 0 0 0 0 0 0 678 4 0 0 0 0 0 0\n"
	got, err := parseTraffic(text, "eth0")
	if want := (traffic{12345, 678}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := parseTraffic(text, "eth1"); err == nil {
		t.Error("no error for a link that is not there")
	}
}

func TestParseMetrics(t *testing.T) {
	text := `# TYPE kubeproxy_sync_full_proxy_rules_duration_seconds histogram
kubeproxy_sync_full_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="0.001"} 1
kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 1.5
kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2
kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv6"} 9
kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"} 9
kubeproxy_sync_partial_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 0.25
kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.5e+09
go_goroutines 7
`
	got := parseSyncs(text)
	want := syncs{full: histogram{2, 1.5}, partial: histogram{1, .25}, last: time.Unix(1500000000, 0)}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if spent := got.since(syncs{full: histogram{1, .5}}); got.count() != 3 || spent != 1250*time.Millisecond {
		t.Errorf("%d syncs, %s since the first", got.count(), spent)
	}
}

func TestQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, .5: 3, .99: 5, 1: 5} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %v: got %v, want %v", q, got, want)
		}
	}
}

func TestParseOptions(t *testing.T) {
	o, err := parse([]string{"-sizes", "10 20x3", "-variants", "legacy"})
	if err != nil || !slices.Equal(o.sizes, []size{{10, 10}, {20, 3}}) || len(o.variants) != 1 || len(o.proxies) != 2 || o.minutes() < 1 {
		t.Errorf("got %+v, %v", o, err)
	}
	if o.patience != 30*time.Minute || o.changes != 10 || o.connections != 0 {
		t.Errorf("by default %s, %d changes, %d connections", o.patience, o.changes, o.connections)
	}
	for _, args := range []string{
		"-sizes x", "-sizes 0", "-sizes 99999", "-sizes 5x", "-sizes 5x0", "-sizes 5x101", "-sizes 5x5x5", "-variants nft", "-proxies none",
		"-moves 0", "-endpoints 0", "-sizes=", "-mode nft", "-patience -1s", "-changes -1", "-connections 5001",
	} {
		if _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("no error for %q", args)
		}
	}
}

func TestParseModeNFTables(t *testing.T) {
	o, err := parse(strings.Fields("-mode nftables -connections 0"))
	if err != nil || o.mode != v1alpha1.ModeNFTables || !slices.Equal(o.variants, []variant{nfTables}) {
		t.Errorf("got %+v, %v", o, err)
	}
	if o.patience != 10*time.Minute || o.changes != 20 || o.connections != 0 {
		t.Errorf("%s, %d changes, %d connections", o.patience, o.changes, o.connections)
	}
}

func TestParseModeUserspace(t *testing.T) {
	o, err := parse(strings.Fields("-mode userspace"))
	if err != nil || o.mode != v1alpha1.ModeUserspace || !slices.Equal(o.proxies, []string{kubeProxyName, nodeproxyName, kernelName}) {
		t.Errorf("got %+v, %v", o, err)
	}
	if o, err = parse(strings.Fields("-mode userspace -proxies NFTables")); err != nil || !slices.Equal(o.proxies, []string{kernelName}) {
		t.Errorf("got %+v, %v", o, err)
	}
	if _, err := parse(strings.Fields("-mode nftables -proxies NFTables")); err == nil {
		t.Error("mode NFTables has no such column")
	}
}

func TestParseMachineCPU(t *testing.T) {
	if got, err := parseMachineCPU("cpu  100 20 30 9999 7777 40 10 5 0 0\ncpu0 1 1 1 1 1 1 1\n"); err != nil || got != 2*time.Second {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := parseMachineCPU("cpu 1 2 3\n"); err == nil {
		t.Error("no error without all times")
	}
}

// TestServing: the same server answers requests, ends connections and sends bytes.
func TestServing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerRequests(conn)
		}
	}()
	to := listener.Addr().(*net.TCPAddr).AddrPort()
	if took, err := askOnce(to, connectPatience); err != nil || took <= 0 {
		t.Errorf("one request took %s: %v", took, err)
	}
	s, _, err := dial(to, connectPatience)
	if err != nil {
		t.Fatal(err)
	}
	defer s.abort()
	for range 2 {
		if err := s.ask(oneAnswer); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.send(stream); err != nil {
		t.Fatal(err)
	}
	for got, buffer := 0, make([]byte, 1<<20); got < 1<<20; {
		n, err := s.read(buffer)
		if n == 0 || err != nil {
			t.Fatalf("after %d bytes: %d, %v", got, n, err)
		}
		got += n
	}
}

func TestParseKernelMemory(t *testing.T) {
	text := "MemTotal:  99 kB\nSUnreclaim:       1 kB\nVmallocTotal:   99 kB\nVmallocUsed:  20 kB\nPercpu:  300 kB\n"
	if got, err := parseKernelMemory(text); err != nil || got != 321<<10 {
		t.Errorf("got %d, %v", got, err)
	}
	for _, broken := range []string{"SUnreclaim: 1 kB\n", text + "Percpu: many\n"} {
		if _, err := parseKernelMemory(broken); err == nil {
			t.Errorf("no error for %q", broken)
		}
	}
}

func TestSightings(t *testing.T) {
	w := &world{services: 1, endpoints: 1}
	seen, first := &sightings{slices: map[string]time.Time{}, rules: map[string]time.Time{}}, time.Unix(1000, 0)
	seen.note(w.slice(probeIndex, 1), first)
	rules := &v1alpha1.ServiceProxyRules{}
	rules.Spec.Ports = []v1alpha1.ServicePort{{Endpoints: []v1alpha1.EndpointGroup{{Addresses: []string{address(probeIndex, movedTo(1)) + ":8080"}}}}}
	seen.note(rules, first.Add(1))
	if slice, rules := seen.of(address(probeIndex, movedTo(1))); !slice.Equal(first) || !rules.Equal(first.Add(1)) {
		t.Errorf("seen at %s and %s", slice, rules)
	}
	if slice, rules := seen.of(address(probeIndex, movedTo(2))); !slice.IsZero() || !rules.IsZero() {
		t.Errorf("what has not happened was seen at %s and %s", slice, rules)
	}
}

// TestEndpointsDiffer: a moved endpoint must not have an address that another
// endpoint has, or the first connection would be seen too early.
func TestEndpointsDiffer(t *testing.T) {
	w := &world{services: 3, endpoints: maxEndpoints}
	within := netip.MustParsePrefix(endpointRange)
	for generation := 1; generation < 300; generation++ {
		seen := map[string]bool{}
		for _, i := range []int{0, 1, maxServices} {
			for _, e := range w.slice(i, generation).Endpoints {
				if seen[e.Addresses[0]] {
					t.Fatalf("%s is there twice in generation %d", e.Addresses[0], generation)
				}
				seen[e.Addresses[0]] = true
				if a := netip.MustParseAddr(e.Addresses[0]); !within.Contains(a) || netip.MustParsePrefix("10.244.0.0/16").Contains(a) {
					t.Fatalf("%s is outside of %s or a pod's", a, within)
				}
			}
		}
		if before := address(probeIndex, movedTo(generation-1)); seen[before] || before == address(probeIndex, movedTo(generation)) {
			t.Fatalf("the probe does not move in generation %d", generation)
		}
	}
}

// TestTableOfGivenUp: of a proxy whose first sync was given up, nothing else is shown.
func TestTableOfGivenUp(t *testing.T) {
	r := &report{ChurnTime: 60, Connections: 1000, Results: []result{{
		Services: 44000, Endpoints: 1, Mode: v1alpha1.ModeNFTables, Variant: "nf_tables",
		KubeProxy: &measurements{GivenUp: 600},
		Nodeproxy: &measurements{FirstSync: 4, Connections: 60000, Steps: stepMeasurements{SyncEnds: .01}, KernelMemory: 17e6},
	}}}
	r.end()
	var out strings.Builder
	r.print(&out)
	for _, want := range []string{
		"44000 Services x 1 endpoints, NFTables",
		"first full sync                      > 10m0s       4.00 s       -",
		"  sync ends                                -      10.0 ms       -",
		"kernel memory of the rules                 -      17.0 MB       -",
		"connections in the churn                   -        60000       -",
		"  of these failed                          -            0       -",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestTableOfUserspace(t *testing.T) {
	r := &report{mode: v1alpha1.ModeUserspace, Results: []result{{
		Services: 100, Endpoints: 10, Mode: v1alpha1.ModeUserspace,
		KubeProxy: &measurements{Load: &loadMeasurements{Connections: 1000, OneStream: 1e9, ConnectionCPU: 1e-4}},
		Nodeproxy: &measurements{Load: &loadMeasurements{Connections: 4000, OneStream: 3e9, ConnectionCPU: 2e-5}},
		NFTables:  &measurements{Load: &loadMeasurements{Connections: 8000, OneStream: 6e9}},
	}}}
	r.end()
	var out strings.Builder
	r.print(&out)
	for _, want := range []string{
		"100 Services x 10 endpoints, Userspace",
		"kube-proxy    nodeproxy   ratio     NFTables   ratio",
		"new connections/s                       1000         4000   4.000         8000   0.500",
		"  proxy's CPU for each                100 us        20 us   0.200            -       -",
		"throughput of 1 stream           1000.0 MB/s  3000.0 MB/s   3.000  6000.0 MB/s   0.500",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestTable(t *testing.T) {
	r := &report{ChurnTime: 60, Results: []result{{
		Services: 1000, Endpoints: 10, Variant: "legacy",
		KubeProxy: &measurements{FirstSync: 4, ConnectDirect: 40e-6, ConnectService: 80e-6, Resident: 3e6},
		Nodeproxy: &measurements{FirstSync: .1, ConnectDirect: 40e-6, ConnectService: 40e-6, Resident: 1e6, Controller: &controllerMeasurements{Resident: 5e6}},
	}}}
	r.end()
	var out strings.Builder
	r.print(&out)
	for _, want := range []string{
		"1000 Services x 10 endpoints, iptables legacy",
		"first full sync                       4.00 s     100.0 ms   0.025",
		"connect to the endpoint                40 us        40 us   1.000",
		"Service over endpoint                   2.00         1.00   0.500",
		"resident memory                       3.0 MB       1.0 MB   0.333",
		"CPU in 1m0s of churn                       -            -       -",
		"controller: resident memory                -       5.0 MB",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
