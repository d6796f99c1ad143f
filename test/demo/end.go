package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// saveLogs keeps the logs of a run with failures; the cluster's directory goes.
func (d *demo) saveLogs() {
	if d.cluster == nil {
		return
	}
	logs, err := filepath.Glob(filepath.Join(d.cluster.Dir(), "*.log"))
	if err != nil || len(logs) == 0 {
		return
	}
	dir, err := filepath.Abs(filepath.Join("dist", "demo-logs"))
	if err != nil {
		return
	}
	err = errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755))
	for _, path := range logs {
		text, readErr := os.ReadFile(path)
		err = errors.Join(err, readErr, os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o644))
	}
	if err != nil {
		fmt.Fprintln(d.report.out, "\nThe logs could not be saved:", err)
		return
	}
	fmt.Fprintln(d.report.out, "\nThe logs of all processes are in", dir)
}

// cleanUp removes the cluster with all its processes and checks that nothing is
// left.
func (d *demo) cleanUp(ctx context.Context, rulesBefore []string) {
	if d.cluster == nil {
		return
	}
	d.report.section("The end")
	d.report.check("the cluster is removed, and none of its namespaces, links, processes and files is left", func() (string, error) { return "", d.stop() })
	d.report.check("no rule is left behind in the root namespace", func() (string, error) {
		return "", checkClean(ctx, rulesBefore)
	})
}

// stop removes the cluster, if there is one.
func (d *demo) stop() error {
	if d.cluster == nil {
		return nil
	}
	return d.cluster.Stop()
}

// leave lets the cluster run on and states how to use it.
func (d *demo) leave() error {
	kubectl := filepath.Join(d.cluster.Assets(), "kubectl")
	node, outside := d.cluster.Node(0).Namespace(), d.cluster.Outside().Namespace()
	look := fmt.Sprintf("iptables-save -t nat | grep %s/load-balancer", namespace)
	switch d.mode {
	case v1alpha1.ModeIPVS:
		look = fmt.Sprintf("ipvsadm -L -n -t %s:80", loadBalancerIP)
	case v1alpha1.ModeNFTables:
		look = "nft list table ip " + nftables.TableName
	}
	if err := d.cluster.Leave(); err != nil {
		return err
	}
	fmt.Fprintf(d.report.out, `
The cluster runs on. To use it:

  export KUBECONFIG=%s
  export PATH=%s:$PATH

Five commands to try:

  kubectl get nodeproxyrules -o wide
  kubectl get serviceproxyrules %s.load-balancer -o yaml
  ip netns exec %s %s
  ip netns exec %s bash -c 'exec 3<>/dev/tcp/%s/80; echo hello >&3; head -1 <&3'
  kubectl delete serviceproxyrules --all   # and repeat the one before

The logs are in %s. To remove all of it: make demo-clean
`, d.cluster.Kubeconfig(), filepath.Dir(kubectl), namespace, node, look, outside, loadBalancerIP, d.cluster.Dir())
	return nil
}
