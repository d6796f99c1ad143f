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
	want := *v1alpha1.CompleteSettings(nil)
	want.DetectLocal = &v1alpha1.DetectLocalSettings{
		Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"10.244.0.0/16", "fd00:10:244::/56"},
	}
	want.IPVS.Scheduler = new("lc")
	if diff := cmp.Diff(want, got.Complete); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, written); diff != "" {
		t.Errorf("what users wrote was changed:\n%s", diff)
	}
}

func TestSettingsRevision(t *testing.T) {
	unset := revision(t, nil)
	if !regexp.MustCompile(`^[0-9a-f]{8}$`).MatchString(unset) {
		t.Errorf("revision %q is not 8 hexadecimal digits", unset)
	}
	if got := revision(t, &v1alpha1.ProxySettings{Mode: new(v1alpha1.ModeIPTables), Sync: &v1alpha1.SyncSettings{}}); got != unset {
		t.Errorf("writing defaults down changes the revision from %s to %s", unset, got)
	}
	cidr := func(s string) *v1alpha1.ProxySettings {
		return &v1alpha1.ProxySettings{DetectLocal: &v1alpha1.DetectLocalSettings{
			Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{s}}}
	}
	if a, b := revision(t, cidr("10.244.0.1/16")), revision(t, cidr("10.244.0.0/16")); a != b {
		t.Error("two spellings of one CIDR have different revisions")
	}
	seen := map[string]int{unset: -1}
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
	_, err := CompleteSettings(&v1alpha1.ProxySettings{Mode: new(v1alpha1.ProxyMode("x")), Sync: &v1alpha1.SyncSettings{VerifyIntervalSeconds: new(int32(1))}})
	if err == nil || !strings.Contains(err.Error(), "spec.settings.mode: ") || !strings.Contains(err.Error(), "spec.settings.sync.verifyIntervalSeconds: ") {
		t.Errorf("not every wrong field is named: %v", err)
	}
}
