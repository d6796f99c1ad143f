package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/cmd/internal/connect"
	"github.com/nodeproxy-io/nodeproxy/cmd/internal/logging"
)

func TestParse(t *testing.T) {
	var out bytes.Buffer
	got, err := parse([]string{"--api-server", "https://a:1", "--api-server", "https://b:2", "--v", "2"}, "node-1", &out)
	if err != nil {
		t.Fatal(err)
	}
	want := &options{
		api: connect.Options{APIServers: []string{"https://a:1", "https://b:2"}}, namespace: "nodeproxy-system", nodeName: "node-1",
		stateDir: "/var/lib/nodeproxy", sysctls: "/proc/sys", proxyHealth: "0.0.0.0:10256", metrics: "127.0.0.1:10249", healthProbe: "127.0.0.1:19256", iptables: "auto", drain: 10 * time.Second, logging: logging.Options{Verbosity: 2, Format: logging.Text},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(options{})); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	got, err = parse([]string{"cleanup", "--node-name", "other"}, "node-1", &out)
	if err != nil || got.command != "cleanup" || got.nodeName != "other" {
		t.Errorf("cleanup: %+v, %v", got, err)
	}
	if _, err := parse([]string{"--help"}, "", &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "cleanup [flags]") {
		t.Errorf("help: %v, %s", err, out.String())
	}
}

func TestUsefulErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no node name":        {nil, "--node-name"},
		"unknown argument":    {[]string{"start"}, `unknown argument "start"`},
		"missing kubeconfig":  {[]string{"--node-name", "n", "--kubeconfig", "/nonexistent"}, "--kubeconfig /nonexistent"},
		"unknown flag":        {[]string{"--frob"}, "-frob"},
		"unknown log format":  {[]string{"--logging-format", "xml"}, "use text or json"},
		"unknown variant":     {[]string{"--iptables-variant", "nft"}, "use auto, nf_tables or legacy"},
		"unknown range":       {[]string{"cleanup", "--ipvs-exclude-cidrs", "10.0.0.0/8,x"}, `excludeCIDRs[1]`},
		"cleanup comes first": {[]string{"--v", "1", "cleanup"}, "after an optional subcommand"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(tt.args, "", &bytes.Buffer{})
			if err == nil {
				err = run(context.Background(), o, &bytes.Buffer{})
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestVirtualServers(t *testing.T) {
	const servers = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\nTCP  0A000001:0050 rr \n  -> 0AB40001:0050      Masq    1      1          0         \n"
	const connections = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\nTCP C0A80009 A1B2 0A000001 0050 0AB40001 0050 ESTABLISHED     899\n"
	proc := t.TempDir()
	shows := func(want string) {
		t.Helper()
		var out bytes.Buffer
		if err := printVirtualServers(&out, proc); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("printed (-want +got):\n%s", diff)
		}
	}
	shows("no virtual servers: the kernel has not loaded the module ip_vs\n")
	directory := filepath.Join(proc, "thread-self/net")
	if err := os.MkdirAll(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"ip_vs": servers, "ip_vs_conn": connections} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shows(servers + "connections: 1\n")
	if got, err := parse([]string{"virtual-servers"}, "node-1", &bytes.Buffer{}); err != nil || got.command != "virtual-servers" {
		t.Errorf("%+v, %v", got, err)
	}
}

// fakeSets has the ipsets of one family.
type fakeSets map[ipvs.SetName][]ipvs.Entry

// Sets implements setReader.
func (f fakeSets) Sets(names []ipvs.SetName) (map[ipvs.SetName][]ipvs.Entry, error) {
	if f == nil {
		return nil, errors.New("no permission")
	}
	out := map[ipvs.SetName][]ipvs.Entry{}
	for _, name := range names {
		if entries, exists := f[name]; exists {
			out[name] = entries
		}
	}
	return out, nil
}

func TestIPSets(t *testing.T) {
	shown := func(sets map[dataplane.Family]fakeSets) (string, error) {
		var out bytes.Buffer
		err := printIPSets(&out, func(f dataplane.Family) setReader { return sets[f] })
		return out.String(), err
	}
	for name, tt := range map[string]struct {
		ipv4, ipv6 fakeSets
		want       string
	}{
		"none": {fakeSets{}, fakeSets{}, "no ipsets of mode IPVS on this node\n"},
		"both families, other sets left out": {
			fakeSets{"KUBE-CLUSTER-IP": {"10.0.0.2,tcp:80", "10.0.0.1,tcp:80"}, "KUBE-IPVS-IPS": nil, "OTHER": {"10.0.0.3"}},
			fakeSets{"KUBE-6-CLUSTER-IP": {"fd00::1,udp:53"}},
			"KUBE-CLUSTER-IP, entries: 2\n  10.0.0.1,tcp:80\n  10.0.0.2,tcp:80\nKUBE-IPVS-IPS, entries: 0\nKUBE-6-CLUSTER-IP, entries: 1\n  fd00::1,udp:53\n",
		},
	} {
		got, err := shown(map[dataplane.Family]fakeSets{dataplane.IPv4: tt.ipv4, dataplane.IPv6: tt.ipv6})
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got, err := shown(map[dataplane.Family]fakeSets{dataplane.IPv4: {"KUBE-IPVS-IPS": nil}}); err == nil || got != "" {
		t.Errorf("without permission for IPv6: %v, and %q", err, got)
	}
	if got, err := parse([]string{"ipsets"}, "node-1", &bytes.Buffer{}); err != nil || got.command != "ipsets" {
		t.Errorf("%+v, %v", got, err)
	}
}
