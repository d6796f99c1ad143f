package kubeproxy

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// k3sArguments is the annotation with the command line of k3s on a Node.
const k3sArguments = "k3s.io/node-args"

// k3s returns the pools of nodes on which kube-proxy runs inside k3s.
func (f *finder) k3s(ctx context.Context) ([]*pool, error) {
	nodes, err := f.allNodes(ctx)
	if err != nil {
		return nil, err
	}
	clusterCIDR := ""
	commands := map[string][]string{}
	for _, node := range nodes {
		annotation, is := node.Annotations[k3sArguments]
		if !is || node.Labels[corev1.LabelOSStable] == string(corev1.Windows) {
			continue
		}
		var args []string
		if err := json.Unmarshal([]byte(annotation), &args); err != nil {
			return nil, invalid("Node %s, annotation %s: not a list of arguments", node.Name, k3sArguments)
		}
		commands[node.Name] = args
		if len(args) == 0 || args[0] != "server" {
			continue
		}
		if off := option(args, "disable-kube-proxy"); len(off) > 0 && off[len(off)-1] != "false" {
			return nil, nil
		}
		if ranges := option(args, "cluster-cidr"); len(ranges) > 0 {
			clusterCIDR = strings.Join(ranges, ",")
		}
	}
	var configs []*config
	for i := range nodes {
		args, is := commands[nodes[i].Name]
		if !is {
			continue
		}
		c := &config{owner: "Node " + nodes[i].Name, file: "annotation " + k3sArguments, node: nodes[i].Name}
		command := k3sDefaults(&nodes[i], clusterCIDR)
		for _, arg := range option(args, "kube-proxy-arg") {
			command = append(command, "--"+strings.TrimLeft(arg, "-"))
		}
		if err := f.configure(ctx, c, &corev1.PodSpec{}, &corev1.Container{}, command); err != nil {
			return nil, err
		}
		configs = append(configs, c)
	}
	return byConfiguration(configs), nil
}

// k3sDefaults returns the arguments that k3s passes to kube-proxy.
func k3sDefaults(node *corev1.Node, clusterCIDR string) []string {
	address := "127.0.0.1"
	if i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP }); i >= 0 &&
		strings.Contains(node.Status.Addresses[i].Address, ":") {
		address = "::1"
	}
	if clusterCIDR == "" {
		if clusterCIDR = "10.42.0.0/16"; address == "::1" {
			clusterCIDR = "fd00:42::/56"
		}
	}
	return []string{
		"--proxy-mode=iptables", "--healthz-bind-address=" + address, "--cluster-cidr=" + clusterCIDR, "--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
	}
}

// option returns the values of an option of k3s. A switch has the value true.
func option(args []string, name string) []string {
	var out []string
	for i, arg := range args {
		option, value, assigned := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		switch {
		case option != name || !strings.HasPrefix(arg, "--"):
		case assigned:
			out = append(out, value)
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "--"):
			out = append(out, args[i+1])
		default:
			out = append(out, "true")
		}
	}
	return out
}
