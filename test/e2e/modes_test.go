package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// modesPace has 200 new TCP connections among those to the steady targets, the rest is UDP.
const modesPace = 300

// modesChanged changes the mode of a cluster that serves, there and back and there again. Each
// time, all of the former mode goes, and the plugin shows the new one.
func modesChanged(r *run) {
	r.must(programs.Into(r.ctx, r.temp, programs.Plugin))
	pods, begun, before := r.agentPods(), time.Now(), r.load.Answered("tcp")
	for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeNFTables, v1alpha1.ModeIPTables, v1alpha1.ModeNFTables} {
		begin := time.Now()
		r.patch(fmt.Sprintf(`{"spec":{"settings":{"mode":%q}}}`, mode))
		r.until(time.Minute, "each node runs mode "+string(mode)+" alone", func() error { return r.runs(mode) })
		r.remark("%s on both nodes after %s", mode, seconds(time.Since(begin)))
		r.until(20*time.Second, "status names mode "+string(mode), func() error {
			return r.plugin([]string{"status"}, "MODES        2 "+string(mode), "\nEverything is healthy.")
		})
		r.traced(mode)
		r.connections(2 * r.row.rate()) // by the rules of this mode
	}
	r.remark("%.0f new TCP connections/s", float64(r.load.Answered("tcp")-before)/time.Since(begun).Seconds())
	fmt.Println(r.kubectl("get", "nodeproxyrules", "-o", "wide"))
	r.samePods(pods)
}

// runs returns nil when each node reports the desired state in a mode, and its kernel has
// nothing of another one.
func (r *run) runs(mode v1alpha1.ProxyMode) error {
	if err := r.programmed(); err != nil {
		return err
	}
	for _, node := range r.cluster.Nodes() {
		status := r.statusOf(node)
		if status.Mode != mode {
			return fmt.Errorf("%s runs mode %s", node.Name(), status.Mode)
		}
		if err := counts(status.Kernel, mode); err != nil {
			return fmt.Errorf("%s: %w", node.Name(), err)
		}
		for of, has := range r.kernelHas(node) {
			if (of == mode) != (len(has) > 0) {
				return fmt.Errorf("%s in mode %s has of mode %s: %q", node.Name(), mode, of, has)
			}
		}
	}
	return nil
}

// counts returns nil if what is reported of a kernel is of a mode.
func counts(kernel *v1alpha1.KernelCounts, mode v1alpha1.ProxyMode) error {
	if kernel == nil || kernel.Chains == 0 || kernel.Rules == 0 {
		return fmt.Errorf("the status counts no chains or rules: %+v", kernel)
	}
	destinations := slices.ContainsFunc(kernel.Sets, func(s v1alpha1.SetCount) bool { return s.Name == "service-ips" && s.Elements > 0 })
	if nftables := mode == v1alpha1.ModeNFTables; destinations != nftables || nftables != (len(kernel.Sets) > 0) {
		return fmt.Errorf("in mode %s the status counts the elements of %+v", mode, kernel.Sets)
	}
	return nil
}

// kernelHas is what the kernel of a node has of each mode.
func (r *run) kernelHas(node *kubelets.Node) map[v1alpha1.ProxyMode][]string {
	r.Helper()
	has := map[v1alpha1.ProxyMode][]string{}
	for _, line := range r.saved(node) {
		if ours.MatchString(line) {
			has[v1alpha1.ModeIPTables] = append(has[v1alpha1.ModeIPTables], line)
		}
	}
	out, err := node.Exec(r.ctx, nil, "nft", "list", "tables")
	r.must(err)
	has[v1alpha1.ModeNFTables] = ourTable.FindAllString(out, -1)
	return has
}

// traced traces a packet, which the mode's own rules must lead to the pods.
func (r *run) traced(mode v1alpha1.ProxyMode) {
	r.Helper()
	from, ip := r.podsOf("client")[r.cluster.Node(0).Name()].Name, r.service("cluster-ip").Spec.ClusterIP
	want := []string{", mode " + string(mode) + "\n"}
	for _, name := range r.web() {
		want = append(want, fmt.Sprintf(" (%s/%s)\n", shop, name))
	}
	if mode == v1alpha1.ModeNFTables {
		want = append(want, "map service-ips → cluster-2 → pick-2 → map endpoints → ",
			"\nLOOKUPS\n", fmt.Sprintf("map service-ips: %s . tcp . 80 -> goto cluster-2\n", ip), fmt.Sprintf("map endpoints: %s . tcp . 80 . 1 -> ", ip))
	} else {
		want = append(want, " KUBE-SERVICES → KUBE-SVC-")
	}
	r.must(r.plugin([]string{"trace", "--from", shop + "/" + from, "--to", ip + ":80"}, want...))
}

// plugin returns nil if kubectl nodeproxy succeeds and prints all of the texts.
func (r *run) plugin(args []string, want ...string) error {
	command := exec.CommandContext(r.ctx, filepath.Join(r.temp, "kubectl-nodeproxy"), append(args, "--kubeconfig", r.cluster.Kubeconfig())...)
	out, err := command.CombinedOutput()
	for _, text := range want {
		if !strings.Contains(string(out), text) {
			err = errors.Join(err, fmt.Errorf("without %q", text))
		}
	}
	if err != nil {
		return fmt.Errorf("kubectl nodeproxy %s: %w:\n%s", args[0], err, out)
	}
	return nil
}
