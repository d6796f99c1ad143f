package iptables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

func TestSupportOfIPv6(t *testing.T) {
	const (
		addresses = "thread-self/net/if_inet6"
		off       = "sys/net/ipv6/conf/all/disable_ipv6"
	)
	for name, c := range map[string]struct {
		family dataplane.Family
		files  map[string]string
		want   string // in the error; empty: supported
	}{
		"IPv6":                      {dataplane.IPv6, map[string]string{addresses: "", off: "0\n"}, ""},
		"IPv6, no sysctl to read":   {dataplane.IPv6, map[string]string{addresses: ""}, ""},
		"the kernel has no IPv6":    {dataplane.IPv6, nil, "the node has no IPv6; start its kernel with the module ipv6"},
		"IPv6 switched off":         {dataplane.IPv6, map[string]string{addresses: "", off: "1\n"}, "set the sysctl net.ipv6.conf.all.disable_ipv6 to 0"},
		"IPv4 asks nothing of IPv6": {dataplane.IPv4, map[string]string{off: "1\n"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			for file, content := range c.files {
				path := filepath.Join(proc, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			d := New(c.family, Options{SysctlFolder: filepath.Join(proc, "sys")})
			d.kernel, d.proc = newFakeKernel(), proc
			_, verified := d.Verify(context.Background(), newRuleset(), dataplane.VerifyOptions{})
			for _, err := range []error{d.Supported(context.Background(), &dataplane.Ruleset{}), verified} {
				if c.want == "" && err != nil {
					t.Errorf("got %v, want support", err)
				}
				if c.want != "" && (!errors.Is(err, dataplane.ErrUnsupported) || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("got %v, want ErrUnsupported with %q", err, c.want)
				}
			}
		})
	}
}
