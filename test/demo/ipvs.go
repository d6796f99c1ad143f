package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
)

// inUserModeLinux runs this program with the same flags in a kernel that has IPVS.
func inUserModeLinux(ctx context.Context, keep bool) (err error) {
	if keep {
		return errors.New("this machine's kernel has no IPVS, so that the cluster would run in User-mode Linux, and could not be reached from here: leave KEEP=1 out")
	}
	directory, err := os.MkdirTemp("", "nodeproxy-demo-")
	if err != nil {
		return fmt.Errorf("making a directory for programs: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	if err := cluster.Build(ctx, os.Stdout, directory); err != nil {
		return err
	}
	fmt.Println("This machine's kernel has no IPVS: the demo runs in User-mode Linux, on one processor,\nwhere everything takes longer. It takes about four minutes.")
	status, err := ipvskernel.Run(ctx, directory, os.Stdout, os.Args[1:]...)
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case err == nil && status != 0:
		return errFailed
	}
	return err
}

// virtualServer begins the name of one in what countedRules returns.
const virtualServer = "virtual server "

// addIPVS adds to the rules what a node has of IPVS. A real server that only
// waits for the end of its connections is left out.
func addIPVS(ctx context.Context, node *cluster.Node, rules map[string]int) error {
	statistics, err := node.Exec(ctx, "ipvsadm", "-L", "-n", "--stats", "--exact")
	if err != nil {
		return err
	}
	line := regexp.MustCompile(`^(TCP|UDP|SCTP) +(\S+) +(\d+) `)
	for text := range strings.Lines(statistics) {
		if m := line.FindStringSubmatch(text); m != nil {
			conns, err := strconv.Atoi(m[3])
			if err != nil {
				return fmt.Errorf("reading the counters of %s: %w", node.Name(), err)
			}
			rules[virtualServer+m[1]+" "+m[2]] = conns
		}
	}
	servers, err := node.Exec(ctx, "ipvsadm", "-S", "-n")
	if err != nil {
		return err
	}
	for text := range strings.Lines(servers) {
		if text = strings.TrimSpace(text); !strings.HasSuffix(text, "-w 0") {
			rules["ipvsadm "+text] = 0
		}
	}
	sets, err := node.Exec(ctx, "ipset", "save")
	if err != nil {
		return err
	}
	for text := range strings.Lines(sets) {
		if strings.HasPrefix(text, "add ") {
			rules["ipset "+strings.TrimSpace(text)] = 0
		}
	}
	return nil
}

// virtualServersDeleted shows that virtual servers deleted by another program come
// back.
func (d *demo) virtualServersDeleted(ctx context.Context, node *cluster.Node) {
	for _, mischief := range []struct {
		words   string
		command []string
	}{
		{"ipvsadm -C on node-3: every virtual server is back", []string{"ipvsadm", "-C"}},
		{"ip link delete kube-ipvs0 on node-3: everything is back", []string{"ip", "link", "delete", "kube-ipvs0"}},
		{"ipset flush on node-3: every entry is back", []string{"ipset", "flush"}},
	} {
		d.report.check(mischief.words, func() (string, error) {
			before, err := d.countedRules(ctx, node)
			if err != nil {
				return "", err
			}
			begin := time.Now()
			if _, err := node.Exec(ctx, mischief.command[0], mischief.command[1:]...); err != nil {
				return "", err
			}
			err = install.Until(ctx, programmingLimit, func(ctx context.Context) error { return d.sameRuleNames(ctx, node, before) })
			took := time.Since(begin)
			return "after " + duration(took), errors.Join(err, soon(ctx, d.visitor.Place, "tcp", d.clusterAddress("cluster-ip")))
		})
	}
}

// showVirtualServers prints what ipvsadm reports of a Service, and wants as many
// virtual servers as the node reports.
func (d *demo) showVirtualServers(ctx context.Context, node *cluster.Node) {
	d.report.check(node.Name()+" reports as many virtual servers, real servers and set entries as it has", func() (string, error) {
		saw := ""
		err := install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			held := map[string]int{}
			if err := addIPVS(ctx, node, held); err != nil {
				return err
			}
			var servers, reals, entries int32
			for name := range held {
				switch {
				case strings.HasPrefix(name, "ipvsadm -A "):
					servers++
				case strings.HasPrefix(name, "ipvsadm -a "):
					reals++
				case strings.HasPrefix(name, "ipset add "):
					entries++
				}
			}
			status, err := d.statusOf(ctx, node)
			if err != nil {
				return err
			}
			saw = fmt.Sprintf("%d, %d and %d", servers, reals, entries)
			k := status.Kernel
			// It counts those that drain, too. Counts alone are reported every five minutes,
			// so that some it has counted may be gone.
			if k == nil || k.VirtualServers != servers || k.RealServers < reals || k.IPSetEntries != entries {
				return fmt.Errorf("there are %s, it reports %+v", saw, k)
			}
			return nil
		})
		return saw, err
	})
	for _, address := range []string{d.clusterAddress("cluster-ip"), d.clusterAddress("sticky")} {
		if text, err := node.Exec(ctx, "ipvsadm", "-L", "-n", "-t", address); err == nil { // the checks state what is wrong
			d.report.show(text)
		}
	}
}
