package render

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func revision(t *testing.T, s *v1alpha1.ProxySettings) string {
	t.Helper()
	got, err := CompleteSettings(s)
	if err != nil {
		t.Fatal(err)
	}
	return got.Revision
}

func TestCompleteSettings(t *testing.T) {
	written := &v1alpha1.ProxySettings{
		DetectLocal: &v1alpha1.DetectLocalSettings{
			Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"10.244.3.1/16", "fd00:10:244:0::/56"},
		},
		IPVS: &v1alpha1.IPVSSettings{Scheduler: new("lc")},
	}
	before := written.DeepCopy()
	got, err := CompleteSettings(written)
	if err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.CompleteSettings(written)
	want.DetectLocal.ClusterCIDRs = []string{"10.244.0.0/16", "fd00:10:244::/56"}
	if diff := cmp.Diff(*want, got.Complete); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, written); diff != "" {
		t.Errorf("what people wrote was changed:\n%s", diff)
	}
}

func TestSettingsRevision(t *testing.T) {
	defaults := revision(t, nil)
	if !regexp.MustCompile(`^[0-9a-f]{8}$`).MatchString(defaults) {
		t.Errorf("revision %q is not 8 hexadecimal digits", defaults)
	}
	if got := revision(t, &v1alpha1.ProxySettings{Mode: new(v1alpha1.ModeIPTables), Sync: &v1alpha1.SyncSettings{}}); got != defaults {
		t.Errorf("writing defaults down changes the revision from %s to %s", defaults, got)
	}
	cidr := func(s string) *v1alpha1.ProxySettings {
		return &v1alpha1.ProxySettings{DetectLocal: &v1alpha1.DetectLocalSettings{
			Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{s}}}
	}
	if a, b := revision(t, cidr("10.244.0.1/16")), revision(t, cidr("10.244.0.0/16")); a != b {
		t.Error("two spellings of one CIDR have different revisions")
	}
	seen := map[string]int{defaults: -1}
	for i, s := range []*v1alpha1.ProxySettings{
		cidr("10.244.0.0/16"), cidr("10.0.0.0/8"),
		{Mode: new(v1alpha1.ModeIPVS)},
		{Masquerade: &v1alpha1.MasqueradeSettings{Bit: new(int32(0))}},
		{Conntrack: &v1alpha1.ConntrackSettings{Min: new(int32(0))}},
		{Conntrack: &v1alpha1.ConntrackSettings{MaxPerCore: new(int32(0))}},
	} {
		got := revision(t, s)
		if j, ok := seen[got]; ok {
			t.Errorf("settings %d and %d share the revision %s", i, j, got)
		}
		seen[got] = i
	}
	// Agents of a running cluster echo revisions, so the hash must stay.
	if got := revision(t, cidr("10.244.0.0/16")); got != "140baee8" {
		t.Errorf("the revision of known settings changed to %s", got)
	}
}

func TestInvalidSettings(t *testing.T) {
	detect := func(d v1alpha1.DetectLocalSettings) v1alpha1.ProxySettings {
		return v1alpha1.ProxySettings{DetectLocal: &d}
	}
	ports := func(n v1alpha1.NodePortSettings) v1alpha1.ProxySettings { return v1alpha1.ProxySettings{NodePorts: &n} }
	sync := func(minimum, verify int32) v1alpha1.ProxySettings {
		return v1alpha1.ProxySettings{Sync: &v1alpha1.SyncSettings{MinIntervalMilliseconds: &minimum, VerifyIntervalSeconds: &verify}}
	}
	for name, c := range map[string]struct {
		settings v1alpha1.ProxySettings
		field    string // under spec.settings
	}{
		"unknown mode":        {v1alpha1.ProxySettings{Mode: new(v1alpha1.ProxyMode("Magic"))}, "mode"},
		"unknown fallback":    {v1alpha1.ProxySettings{Fallback: new(v1alpha1.FallbackMode("IPVS"))}, "fallback"},
		"unknown enforcement": {v1alpha1.ProxySettings{Enforcement: new(v1alpha1.Enforcement("Maybe"))}, "enforcement"},
		"unknown detector":    {detect(v1alpha1.DetectLocalSettings{Mode: "Guess"}), "detectLocal.mode"},
		"malformed CIDR":      {detect(v1alpha1.DetectLocalSettings{Mode: "ClusterCIDR", ClusterCIDRs: []string{"10.0.0.0"}}), "detectLocal.clusterCIDRs[0]"},
		"two CIDRs of one family": {detect(v1alpha1.DetectLocalSettings{Mode: "ClusterCIDR",
			ClusterCIDRs: []string{"10.0.0.0/8", "172.16.0.0/12"}}), "detectLocal.clusterCIDRs"},
		"CIDR missing":                       {detect(v1alpha1.DetectLocalSettings{Mode: "ClusterCIDR"}), "detectLocal.clusterCIDRs"},
		"interface missing":                  {detect(v1alpha1.DetectLocalSettings{Mode: "BridgeInterface"}), "detectLocal.interface"},
		"prefix missing":                     {detect(v1alpha1.DetectLocalSettings{Mode: "InterfaceNamePrefix"}), "detectLocal.interfaceNamePrefix"},
		"member of another mode":             {detect(v1alpha1.DetectLocalSettings{Mode: "None", Interface: new("cni0")}), "detectLocal.interface"},
		"interface name too long":            {detect(v1alpha1.DetectLocalSettings{Mode: "BridgeInterface", Interface: new("a123456789012345")}), "detectLocal.interface"},
		"interface name malformed":           {detect(v1alpha1.DetectLocalSettings{Mode: "InterfaceNamePrefix", InterfaceNamePrefix: new("a b")}), "detectLocal.interfaceNamePrefix"},
		"unknown address mode":               {ports(v1alpha1.NodePortSettings{AddressMode: new(v1alpha1.NodePortAddressMode("Some"))}), "nodePorts.addressMode"},
		"CIDRs missing":                      {ports(v1alpha1.NodePortSettings{AddressMode: new(v1alpha1.NodePortsCIDRs)}), "nodePorts.cidrs"},
		"CIDRs with All":                     {ports(v1alpha1.NodePortSettings{CIDRs: []string{"192.0.2.0/24"}}), "nodePorts.cidrs"},
		"unknown localhost":                  {ports(v1alpha1.NodePortSettings{Localhost: new(v1alpha1.Toggle("On"))}), "nodePorts.localhost"},
		"bit too high":                       {v1alpha1.ProxySettings{Masquerade: &v1alpha1.MasqueradeSettings{Bit: new(int32(32))}}, "masquerade.bit"},
		"bit negative":                       {v1alpha1.ProxySettings{Masquerade: &v1alpha1.MasqueradeSettings{Bit: new(int32(-1))}}, "masquerade.bit"},
		"scheduler":                          {v1alpha1.ProxySettings{IPVS: &v1alpha1.IPVSSettings{Scheduler: new("")}}, "ipvs.scheduler"},
		"exclude CIDR":                       {v1alpha1.ProxySettings{IPVS: &v1alpha1.IPVSSettings{ExcludeCIDRs: []string{"10.0.0.0/8", "x"}}}, "ipvs.excludeCIDRs[1]"},
		"negative IPVS timeout":              {v1alpha1.ProxySettings{IPVS: &v1alpha1.IPVSSettings{TCPTimeoutSeconds: new(int32(-1))}}, "ipvs.tcpTimeoutSeconds"},
		"negative interval":                  {sync(-1, 60), "sync.minIntervalMilliseconds"},
		"verifies too often":                 {sync(250, 4), "sync.verifyIntervalSeconds"},
		"verifies more often than it writes": {sync(10_001, 10), "sync.verifyIntervalSeconds"},
		"negative conntrack":                 {v1alpha1.ProxySettings{Conntrack: &v1alpha1.ConntrackSettings{Min: new(int32(-1))}}, "conntrack.min"},
		"unknown liberal":                    {v1alpha1.ProxySettings{Conntrack: &v1alpha1.ConntrackSettings{TCPBeLiberal: new(v1alpha1.Toggle("yes"))}}, "conntrack.tcpBeLiberal"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := CompleteSettings(&c.settings)
			if err == nil {
				t.Fatalf("taken as %+v", got)
			}
			if !strings.HasPrefix(err.Error(), "spec.settings."+c.field+":") {
				t.Errorf("the error does not name spec.settings.%s: %v", c.field, err)
			}
		})
	}
	if _, err := CompleteSettings(&v1alpha1.ProxySettings{Mode: new(v1alpha1.ProxyMode("x")), Sync: &v1alpha1.SyncSettings{VerifyIntervalSeconds: new(int32(1))}}); err == nil ||
		!strings.Contains(err.Error(), "mode") || !strings.Contains(err.Error(), "verifyIntervalSeconds") {
		t.Errorf("not every wrong field is named: %v", err)
	}
	if _, err := CompleteSettings(&v1alpha1.ProxySettings{Sync: &v1alpha1.SyncSettings{MinIntervalMilliseconds: new(int32(10_000)), VerifyIntervalSeconds: new(int32(10))}}); err != nil {
		t.Errorf("equal intervals: %v", err)
	}
}
