package faults

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// commands begin the programs of both IP families.
func commands() []string { return []string{"iptables", "ip6tables"} }

// program is the name of a program of the node's variant of iptables.
func (w *world) program(node *cluster.Node, command, end string) string {
	if w.legacy(node) {
		return command + "-legacy" + end
	}
	return command + "-nft" + end
}

var counters = regexp.MustCompile(` \[\d+:\d+\]$`)

// saved are the rules and chains of a node, sorted, each with its table. The
// order of rules within a chain is left out, except where their text shows
// it: probabilities.
func (w *world) saved(ctx context.Context, node *cluster.Node) ([]string, error) {
	if w.mode == v1alpha1.ModeNFTables {
		return listedTables(ctx, node)
	}
	var out []string
	for _, command := range commands() {
		text, err := node.Exec(ctx, w.program(node, command, "-save"))
		if err != nil {
			return nil, err
		}
		table := ""
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "*"):
				table = command + " " + line[1:] + " "
			case strings.HasPrefix(line, ":"), strings.HasPrefix(line, "-A"):
				out = append(out, table+counters.ReplaceAllString(line, ""))
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// difference states how two sorted lists differ; empty: not at all.
func difference(want, got []string) string {
	if slices.Equal(want, got) {
		return ""
	}
	count := map[string]int{}
	for _, line := range got {
		count[line]++
	}
	for _, line := range want {
		count[line]--
	}
	var out []string
	for _, line := range slices.Sorted(maps.Keys(count)) {
		switch n := count[line]; {
		case n < 0:
			out = append(out, "missing: "+line)
		case n > 0:
			out = append(out, "too many: "+line)
		}
	}
	return fmt.Sprintf("%d rules differ:\n  %s", len(out), strings.Join(out[:min(6, len(out))], "\n  "))
}

var (
	dispatched  = regexp.MustCompile(`^(ip6?tables) nat -A KUBE-SERVICES -d (\S+)/\d+ -p (\w+) .*cluster IP" .*--dport (\d+) -j KUBE-SVC-(\w+)$`)
	chosen      = regexp.MustCompile(`^(ip6?tables) nat -A KUBE-(SVC|SVL)-(\w+) .*-j (KUBE-SEP-\w+)$`)
	translation = regexp.MustCompile(`^(ip6?tables) nat -A (KUBE-SEP-\w+) .*-j DNAT --to-destination (\S+)$`)
)

// local ends the lines of served and desired that are about policy Local.
const local = " local"

// served reads from a node's rules where connections to cluster IPs go, and those that
// policy Local keeps on the node: a sorted line for each "IP:port/protocol endpoint".
func served(rules []string) []string {
	endpoints, chains := map[string]string{}, map[string][]string{}
	for _, rule := range rules {
		if m := translation.FindStringSubmatch(rule); m != nil {
			endpoints[m[1]+m[2]] = m[3]
		} else if m := chosen.FindStringSubmatch(rule); m != nil {
			chains[m[1]+m[2]+m[3]] = append(chains[m[1]+m[2]+m[3]], m[1]+m[4])
		}
	}
	var out []string
	for _, rule := range rules {
		m := dispatched.FindStringSubmatch(rule)
		if m == nil {
			continue
		}
		line := net.JoinHostPort(m[2], m[4]) + "/" + m[3] + " "
		for _, chain := range chains[m[1]+"SVC"+m[5]] {
			out = append(out, line+endpoints[chain])
		}
		for _, chain := range chains[m[1]+"SVL"+m[5]] {
			out = append(out, line+endpoints[chain]+local)
		}
	}
	out = append(out, servedByTables(rules)...)
	slices.Sort(out)
	return slices.Compact(out)
}

// desired is what served should find on a node, from the Services and EndpointSlices of the
// API server: all ready endpoints. Without a node it has no lines about policy Local.
func (w *world) desired(ctx context.Context, node *cluster.Node) ([]string, error) {
	services, endpointSlices := &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}
	if err := w.cluster.Client().List(ctx, services); err != nil {
		return nil, err
	}
	if err := w.cluster.Client().List(ctx, endpointSlices); err != nil {
		return nil, err
	}
	byService := map[string][]discoveryv1.EndpointSlice{}
	for _, s := range endpointSlices.Items {
		key := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		byService[key] = append(byService[key], s)
	}
	var out []string
	for _, service := range services.Items {
		onNode := node
		if service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			onNode = nil
		}
		for _, ip := range service.Spec.ClusterIPs {
			for _, port := range service.Spec.Ports {
				for _, slice := range byService[service.Namespace+"/"+service.Name] {
					out = append(out, ready(ip, port, slice, onNode)...)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// front is a port at a cluster IP, as in lines of served.
func front(ip string, port corev1.ServicePort) string {
	return fmt.Sprintf("%s/%s", net.JoinHostPort(ip, strconv.Itoa(int(port.Port))), strings.ToLower(string(port.Protocol)))
}

// ready are the lines of desired of one slice.
func ready(ip string, port corev1.ServicePort, slice discoveryv1.EndpointSlice, node *cluster.Node) []string {
	family := discoveryv1.AddressTypeIPv4
	if netip.MustParseAddr(ip).Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	var out []string
	for _, p := range slice.Ports {
		if slice.AddressType != family || *p.Name != port.Name || *p.Protocol != port.Protocol {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, address := range e.Addresses {
				line := front(ip, port) + " " + net.JoinHostPort(address, strconv.Itoa(int(*p.Port)))
				out = append(out, line)
				if node != nil && *e.NodeName == node.Name() {
					out = append(out, line+local)
				}
			}
		}
	}
	return out
}
