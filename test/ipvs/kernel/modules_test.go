package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

// loaderFile names the program that the kernel runs to load a module.
const loaderFile = "/proc/sys/kernel/modprobe"

// reject puts a loader in the place of another one that rejects modules whose
// name, or alias, holds one of the words.
func reject(t *testing.T, loader string, words ...string) {
	t.Helper()
	var text strings.Builder
	text.WriteString("#!/bin/sh\nfor word; do\ncase $word in\n")
	for _, word := range words {
		fmt.Fprintf(&text, "*%s*) exit 1;;\n", word)
	}
	fmt.Fprintf(&text, "esac\ndone\nexec %s \"$@\"\n", loader)
	path := filepath.Join(t.TempDir(), "loader")
	check(t, os.WriteFile(path, []byte(text.String()), 0o700), os.WriteFile(loaderFile, []byte(path), 0)) //nolint:gosec // it is a program
}

func modules(t *testing.T) {
	text, err := os.ReadFile(loaderFile)
	check(t, err)
	loader := strings.TrimSpace(string(text))
	v4, v6 := ipvs.NewKernel(dataplane.IPv4, ""), ipvs.NewKernel(dataplane.IPv6, "")

	rejected := []string{"IPVS", "nfnetlink-subsys-6", "hash:ip,port,net", "rtnl-link-dummy"}
	remedies := []string{"modprobe ip_vs)", "modprobe ip_set)", "modprobe ip_set_hash_ipportnet)", "modprobe dummy)"}
	for i := range rejected {
		reject(t, loader, rejected[i:]...)
		for _, k := range []ipvs.Kernel{v4, v6} {
			err := k.Open()
			if !errors.Is(err, dataplane.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), remedies[i]) {
				t.Errorf("without %s: %v", rejected[i], err)
			}
			if i > 0 {
				continue
			}
			if err := k.Probe("rr"); !errors.Is(err, dataplane.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), remedies[i]) {
				t.Errorf("probing without %s: %v", rejected[i], err)
			}
			if servers, err := k.Servers(); !errors.Is(err, dataplane.ErrUnsupported) {
				t.Errorf("reading without %s: %v, %v", rejected[i], servers, err)
			}
		}
	}
	if out := run(t, "ip link"); strings.Contains(out, "kube-ipvs0") {
		t.Errorf("looking has made a device:\n%s", out)
	}

	reject(t, loader, "ip_vs_wlc", "ip_vs_nosuch")
	for _, k := range []ipvs.Kernel{v4, v6} {
		check(t, k.Open(), k.Probe("rr"))
		for _, scheduler := range []string{"wlc", "nosuch"} {
			var missing *ipvs.SchedulerError
			if err := k.Probe(scheduler); !errors.As(err, &missing) || missing.Scheduler != scheduler || errors.Is(err, dataplane.ErrUnsupported) {
				t.Errorf("without scheduler %s: %v", scheduler, err)
			}
		}
	}
	reject(t, loader, "ip_vs_nosuch")
	check(t, v4.Probe("wlc"), v6.Probe("wlc"))

	// Loaded again, IPVS has another number.
	for range 2 {
		run(t, uml.LoaderOfModules()+" -r ip_vs_rr ip_vs_wlc ip_vs")
		for _, k := range []ipvs.Kernel{v4, v6} {
			if servers, err := k.Servers(); err != nil || len(servers) > 0 {
				t.Errorf("after ip_vs was unloaded: %v, %v", servers, err)
			}
			check(t, k.Open(), k.Probe("rr"), k.Probe("wlc"))
		}
	}
	if out := run(t, "ipvsadm -Sn"); out != "" {
		t.Errorf("the probes have left:\n%s", out)
	}
}
