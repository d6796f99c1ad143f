package conntrack

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// asking returns complete settings with the changes of edit.
func asking(edit func(*v1alpha1.ConntrackSettings)) *v1alpha1.ConntrackSettings {
	s := &v1alpha1.ConntrackSettings{
		MaxPerCore: new(int32(0)), TCPEstablishedTimeoutSeconds: new(int32(0)), TCPCloseWaitTimeoutSeconds: new(int32(0)),
	}
	if edit != nil {
		edit(s)
	}
	return v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{Conntrack: s}).Conntrack
}

func sized(perCore, least int32) *v1alpha1.ConntrackSettings {
	return asking(func(s *v1alpha1.ConntrackSettings) { s.MaxPerCore, s.Min = &perCore, &least })
}

// fakeSysctls is a directory that looks like the kernel's.
type fakeSysctls struct {
	t         *testing.T
	directory string
	*System
}

func newFakeSysctls(t *testing.T, cpus string, values map[string]int64) *fakeSysctls {
	sysctls := t.TempDir()
	f := &fakeSysctls{t: t, directory: filepath.Join(sysctls, "net", "netfilter"), System: NewSystem(sysctls)}
	if err := os.MkdirAll(f.directory, 0o700); err != nil {
		t.Fatal(err)
	}
	f.online = filepath.Join(f.directory, "online")
	if err := os.WriteFile(f.online, []byte(cpus+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range values {
		f.set(name, value)
	}
	return f
}

func (f *fakeSysctls) set(name string, value int64) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.directory, name), []byte(strconv.FormatInt(value, 10)+"\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeSysctls) expect(want map[string]int64) {
	f.t.Helper()
	for name, value := range want {
		if got, err := f.read(name); got != value || err != nil {
			f.t.Errorf("%s is %d (%v), want %d", name, got, err, value)
		}
	}
}

// ofLinux is what Linux starts with, on a node with 16 GB.
func ofLinux() map[string]int64 {
	return map[string]int64{
		sysctlMax: 262144, sysctlBuckets: 65536, sysctlCount: 1000, sysctlLiberal: 0,
		"nf_conntrack_tcp_timeout_established": 432000, "nf_conntrack_tcp_timeout_close_wait": 60,
		"nf_conntrack_udp_timeout": 30, "nf_conntrack_udp_timeout_stream": 120,
	}
}

func TestTableSize(t *testing.T) {
	for _, tt := range []struct{ perCore, least, cores, want int64 }{
		{32768, 131072, 1, 131072},
		{32768, 131072, 4, 131072},
		{32768, 131072, 8, 262144},
		{32768, 131072, 32, 1048576},
		{32768, 131072, 128, 1048576},
		{32768, 2000000, 128, 1048576}, // even if min is larger
		{32768, 9000000, 128, 1048576},
		{32768, 2000000, 4, 2000000}, // which has no bounds itself
		{32768, 2000000, 32, 2000000},
		{1, 0, 4, 4},
		{0, 131072, 64, 0},
		{1 << 30, 0, 1 << 10, 1048576},
	} {
		if got := tableSize(tt.perCore, tt.least, tt.cores); got != tt.want {
			t.Errorf("maxPerCore %d, min %d, %d cores: %d, want %d", tt.perCore, tt.least, tt.cores, got, tt.want)
		}
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-3": 4, "0-3,5,8-9": 7, "0,2": 2} {
		if got := newFakeSysctls(t, list, nil).cores(); got != want {
			t.Errorf("%q: %d, want %d", list, got, want)
		}
	}
	for _, list := range []string{"", "x", "0-", "0-y"} {
		if got := newFakeSysctls(t, list, nil).cores(); got != runtime.NumCPU() {
			t.Errorf("%q is taken for a list of %d CPUs", list, got)
		}
	}
	k := newFakeSysctls(t, "garbage", nil)
	if got := k.cores(); got != runtime.NumCPU() {
		t.Errorf("%d cores where they are not reported", got)
	}
}

func TestDefaultsAreWritten(t *testing.T) {
	k := newFakeSysctls(t, "0-15", ofLinux())
	defaults := v1alpha1.CompleteSettings(nil).Conntrack
	got := k.Tune(defaults)
	want := Tuned{Changes: []Change{
		{"net.netfilter.nf_conntrack_max", 262144, 524288},
		{"net.netfilter.nf_conntrack_buckets", 65536, 131072},
		{"net.netfilter.nf_conntrack_tcp_timeout_established", 432000, 86400},
		{"net.netfilter.nf_conntrack_tcp_timeout_close_wait", 60, 3600},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	k.expect(map[string]int64{
		sysctlMax: 524288, sysctlBuckets: 131072, sysctlLiberal: 0,
		"nf_conntrack_tcp_timeout_established": 86400, "nf_conntrack_tcp_timeout_close_wait": 3600,
		"nf_conntrack_udp_timeout": 30, "nf_conntrack_udp_timeout_stream": 120,
	})
	long := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	for name := range ofLinux() {
		if err := os.Chtimes(filepath.Join(k.directory, name), long, long); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(Tuned{}, k.Tune(defaults)); diff != "" {
		t.Errorf("the second time:\n%s", diff)
	}
	for name := range ofLinux() {
		if info, err := os.Stat(filepath.Join(k.directory, name)); err != nil || !info.ModTime().Equal(long) {
			t.Errorf("%s is written though it does not differ (%v)", name, err)
		}
	}
}

func TestEachSetting(t *testing.T) {
	for name, tt := range map[string]struct {
		settings *v1alpha1.ConntrackSettings
		want     map[string]int64
	}{
		"all left":                    {asking(nil), map[string]int64{}},
		"min counts not by itself":    {sized(0, 999999), map[string]int64{}},
		"a smaller table":             {sized(1000, 131072), map[string]int64{sysctlMax: 131072}},
		"enough buckets":              {sized(0x10000, 0), map[string]int64{}},
		"a larger one":                {sized(0x10000, 400000), map[string]int64{sysctlMax: 400000, sysctlBuckets: 100000}},
		"UDP":                         {asking(func(s *v1alpha1.ConntrackSettings) { s.UDPTimeoutSeconds = new(int32(7)) }), map[string]int64{"nf_conntrack_udp_timeout": 7}},
		"UDP streams":                 {asking(func(s *v1alpha1.ConntrackSettings) { s.UDPStreamTimeoutSeconds = new(int32(8)) }), map[string]int64{"nf_conntrack_udp_timeout_stream": 8}},
		"established":                 {asking(func(s *v1alpha1.ConntrackSettings) { s.TCPEstablishedTimeoutSeconds = new(int32(9)) }), map[string]int64{"nf_conntrack_tcp_timeout_established": 9}},
		"CLOSE_WAIT":                  {asking(func(s *v1alpha1.ConntrackSettings) { s.TCPCloseWaitTimeoutSeconds = new(int32(10)) }), map[string]int64{"nf_conntrack_tcp_timeout_close_wait": 10}},
		"liberal":                     {asking(func(s *v1alpha1.ConntrackSettings) { s.TCPBeLiberal = new(v1alpha1.Enabled) }), map[string]int64{sysctlLiberal: 1}},
		"as the kernel has it anyway": {asking(func(s *v1alpha1.ConntrackSettings) { s.UDPTimeoutSeconds = new(int32(30)) }), map[string]int64{}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFakeSysctls(t, "0-3", ofLinux())
			got := k.Tune(tt.settings)
			if len(got.Unmet) > 0 || len(got.Changes) != len(tt.want) || got.Liberal != (tt.want[sysctlLiberal] == 1) {
				t.Errorf("got %+v", got)
			}
			want := ofLinux()
			maps.Copy(want, tt.want)
			k.expect(want)
		})
	}
}

func TestLiberalIsNeverSwitchedOff(t *testing.T) {
	k := newFakeSysctls(t, "0", ofLinux())
	k.set(sysctlLiberal, 1)
	if got := k.Tune(asking(nil)); !got.Liberal || len(got.Changes) > 0 {
		t.Errorf("got %+v", got)
	}
}

func TestSmallerTableIsNotMadeOverItsConnections(t *testing.T) {
	k := newFakeSysctls(t, "0", ofLinux())
	k.set(sysctlCount, 80000)
	got := k.Tune(sized(100000, 0))
	if len(got.Unmet) != 1 || !strings.Contains(got.Unmet[0], "net.netfilter.nf_conntrack_max is 262144, not 100000") ||
		!strings.Contains(got.Unmet[0], "wait until there are fewer") {
		t.Errorf("unmet %q", got.Unmet)
	}
	k.expect(ofLinux2(sysctlCount, 80000))
	k.set(sysctlCount, 79999)
	if got := k.Tune(sized(100000, 0)); len(got.Unmet) > 0 {
		t.Errorf("unmet %q", got.Unmet)
	}
	k.expect(map[string]int64{sysctlMax: 100000})
	// A table that has no bounds counts as larger than any.
	k.set(sysctlMax, 0)
	k.set(sysctlCount, 80000)
	k.Tune(sized(100000, 0))
	k.expect(map[string]int64{sysctlMax: 0})
	// A larger one is made however full it is.
	k.set(sysctlMax, 85000)
	k.Tune(sized(100000, 0))
	k.expect(map[string]int64{sysctlMax: 100000})
}

func ofLinux2(name string, value int64) map[string]int64 {
	all := ofLinux()
	all[name] = value
	return all
}

func TestWithoutConnectionTracking(t *testing.T) {
	k := newFakeSysctls(t, "0-3", nil)
	if got := k.Tune(v1alpha1.CompleteSettings(nil).Conntrack); !got.Untracked || len(got.Changes)+len(got.Unmet) > 0 {
		t.Errorf("got %+v", got)
	}
	if entries, err := os.ReadDir(k.directory); err != nil || len(entries) != 1 {
		t.Errorf("files have been made: %v, %v", entries, err)
	}
}

func TestMissingSysctlsBlockNothingElse(t *testing.T) {
	all := ofLinux()
	delete(all, "nf_conntrack_udp_timeout_stream")
	delete(all, sysctlBuckets)
	k := newFakeSysctls(t, "0-15", all)
	got := k.Tune(asking(func(s *v1alpha1.ConntrackSettings) {
		s.MaxPerCore, s.UDPStreamTimeoutSeconds, s.UDPTimeoutSeconds = new(int32(32768)), new(int32(300)), new(int32(40))
	}))
	if len(got.Unmet) != 1 || !strings.Contains(got.Unmet[0], "there is no net.netfilter.nf_conntrack_udp_timeout_stream to be set to 300") ||
		!strings.Contains(got.Unmet[0], "this kernel lacks it") ||
		!strings.Contains(got.Unmet[0], "there is no net.netfilter.nf_conntrack_buckets to be set to 131072") {
		t.Errorf("unmet %q", got.Unmet)
	}
	k.expect(map[string]int64{sysctlMax: 524288, "nf_conntrack_udp_timeout": 40})
}

func TestWhatIsNoNumberIsLeft(t *testing.T) {
	k := newFakeSysctls(t, "0-15", ofLinux())
	if err := os.WriteFile(filepath.Join(k.directory, sysctlMax), []byte("many"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := k.Tune(sized(32768, 0)); len(got.Unmet) != 1 || len(got.Changes) > 0 {
		t.Errorf("got %+v", got)
	}
}

func TestDescription(t *testing.T) {
	established := sysctl{"nf_conntrack_tcp_timeout_established", 86400, "tcpEstablishedTimeoutSeconds", "0"}
	size := sysctl{sysctlMax, 131072, "maxPerCore", "0"}
	got := describe([]unmet{{sysctl: size, has: 262144, cause: readOnly}, {sysctl: established, has: 432000, cause: readOnly},
		{sysctl: sysctl{sysctlLiberal, 1, "tcpBeLiberal", "Disabled"}, cause: otherwise, err: os.ErrInvalid}})
	want := []string{
		"net.netfilter.nf_conntrack_max is 262144, not 131072, net.netfilter.nf_conntrack_tcp_timeout_established is 432000, not 86400 because /proc/sys is read-only for the agent: mount the node's /proc/sys/net into its container and name the directory with --sysctl-directory, as config/agent/daemonset.yaml does, or set the values on the node, or leave it by setting conntrack.maxPerCore to 0, conntrack.tcpEstablishedTimeoutSeconds to 0 in spec.settings",
		"net.netfilter.nf_conntrack_tcp_be_liberal is 0, not 1 because writing it fails (invalid argument): set the values on the node, or leave it by setting conntrack.tcpBeLiberal to Disabled in spec.settings",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
