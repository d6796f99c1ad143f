package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
)

// requirement is a command that the demo uses and the Debian package with it.
type requirement struct{ command, debian, purpose string }

func requirements(mode v1alpha1.ProxyMode) []requirement {
	all := []requirement{
		{"iptables", "iptables", "the agents program the kernel with it"},
		{"iptables-save", "iptables", "the agents read the kernel's rules with it"},
		{"iptables-restore", "iptables", "the agents write rules with it"},
		{"ip", "iproute2", "for looking around in the nodes' network namespaces"},
	}
	switch mode {
	case v1alpha1.ModeNFTables:
		return append(all, requirement{"nft", "nftables", "to see what the agents have programmed"})
	case v1alpha1.ModeIPVS:
	default:
		return all
	}
	all = append(all, requirement{"ipvsadm", "ipvsadm", "to see what the agents have programmed"},
		requirement{"ipset", "ipset", "to see what the agents have programmed"},
		requirement{"modprobe", "kmod", "the kernel loads IPVS with it"})
	if !ipvskernel.Here() {
		all = append(all, requirement{"linux.uml", "user-mode-linux", "a kernel with IPVS, which this machine's has not"})
	}
	return all
}

// prepare makes sure that the commands of requirements are there. On Debian and
// its relatives it installs what is missing; elsewhere it names it.
func prepare(ctx context.Context, out io.Writer, mode v1alpha1.ProxyMode) error {
	// Without a login shell these are not among root's directories on Debian.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return err
	}
	var missing, packages []string
	for _, r := range requirements(mode) {
		if _, err := exec.LookPath(r.command); err == nil {
			continue
		}
		missing = append(missing, fmt.Sprintf("%s (%s)", r.command, r.purpose))
		if !slices.Contains(packages, r.debian) {
			packages = append(packages, r.debian)
		}
	}
	if len(missing) == 0 {
		return cluster.Check()
	}
	if os.Geteuid() != 0 {
		return errors.New("the demo makes network namespaces and needs root; run it with sudo: sudo env PATH=\"$PATH\" make demo")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("not found: %s; install them with this system's package manager, on Debian they are in: %s",
			strings.Join(missing, ", "), strings.Join(packages, " "))
	}
	fmt.Fprintf(out, "Not found: %s.\n", strings.Join(missing, ", "))
	for _, args := range [][]string{
		{"update"},
		append([]string{"install", "--yes", "--no-install-recommends"}, packages...),
	} {
		fmt.Fprintf(out, "Running apt-get %s; this takes less than a minute.\n", strings.Join(args, " "))
		if err := aptGet(ctx, args); err != nil {
			return err
		}
	}
	return cluster.Check()
}

func aptGet(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(output.String()))
	}
	return nil
}
