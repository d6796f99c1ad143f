package ipvs

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// mischief is what another program does to our rules.
type mischief struct {
	name     string
	commands [][]string
}

// TestDrift deletes our rules as another program would: they are repaired and counted. Both
// nodes suffer, since an agent waits the longer the more it has repaired.
func TestDrift(tt *testing.T) {
	t := use(tt)
	backend, plain, plain6 := t.web[1].Address(8080), at(plainIP, 80), at(plainIP6, 80)
	for i, all := range [][]mischief{{
		{"virtual servers are changed", [][]string{
			{"ipvsadm", "-D", "-t", plain},
			{"ipvsadm", "-d", "-u", plain, "-r", backend},
			{"ipvsadm", "-e", "-t", at(balancerIP, 80), "-r", backend, "-m", "-w", "7"},
			{"ipvsadm", "-E", "-t", at(externalIP, 80), "-s", "lc"},
			{"ipvsadm", "-a", "-t", plain6, "-r", "[2001:db8::1]:80", "-m"},
		}},
		{"virtual servers are deleted", [][]string{{"ipvsadm", "-C"}}},
	}, {
		{"the device is deleted", [][]string{{"ip", "link", "delete", "kube-ipvs0"}}},
		{"an address and entries are deleted", [][]string{
			{"ip", "address", "delete", plainIP + "/32", "dev", "kube-ipvs0"},
			{"ipset", "flush", "KUBE-CLUSTER-IP"},
			{"ipset", "add", "KUBE-6-CLUSTER-IP", "2001:db8::1,tcp:80"},
		}},
		{"rules are deleted", [][]string{
			{"iptables", "-w", "-t", "nat", "-F", "KUBE-SERVICES"},
			{"iptables", "-w", "-t", "nat", "-F", "PREROUTING"},
		}},
	}} {
		t.sub(t.cluster.Node(i).Name(), func(t test) {
			for _, one := range all {
				t.sub(one.name, func(t test) { t.repaired(i, one.commands) })
			}
		})
	}
}

// repaired runs commands on a node that change what is ours, and waits until all is as it was
// and the node has counted repairs.
func (t test) repaired(i int, commands [][]string) {
	node := t.cluster.Node(i)
	t.until(t.programmed)
	repairs, err := t.repairs(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	want := t.settledState(node)
	for _, command := range commands {
		t.exec(node, command[0], command[1:]...)
	}
	t.until(func(ctx context.Context) error {
		now, err := state(ctx, node)
		if err == nil && !slices.Equal(now, want) {
			err = fmt.Errorf("it differs: %s", difference(want, now))
		}
		return err
	})
	t.until(func(ctx context.Context) error {
		now, err := t.repairs(ctx, node)
		if err == nil && now <= repairs {
			err = fmt.Errorf("%d repairs are counted, %d before", now, repairs)
		}
		return err
	})
	t.answered(t.visitors[i].Place, "tcp", at(plainIP, 80), "web-1", "web-2", "web-3")
}

// repairs are those that a node's agent has counted, by its metrics: the status gathers
// them for a minute.
func (w *world) repairs(ctx context.Context, node *cluster.Node) (int, error) {
	return total(ctx, node, "nodeproxy_agent_repairs_total")
}

// total returns a metric of a node's agent, over all its labels.
func total(ctx context.Context, node *cluster.Node, metric string) (int, error) {
	return node.Total(ctx, "http://127.0.0.1:10249/metrics", metric)
}

// settledState is the state of a node once nothing waits for the end of connections.
func (t test) settledState(node *cluster.Node) []string {
	t.Helper()
	var out []string
	t.until(func(ctx context.Context) error {
		var err error
		out, err = state(ctx, node)
		for _, line := range out {
			if strings.HasSuffix(line, "-w 0") {
				return fmt.Errorf("a real server still waits for the end of its connections: %s", line)
			}
		}
		return err
	})
	return out
}

// state is what a node's kernel has of Services, sorted: virtual and real servers,
// addresses of kube-ipvs0, entries of ipsets, and rules.
func state(ctx context.Context, node *cluster.Node) ([]string, error) {
	var out []string
	for _, command := range [][]string{
		{"ipvsadm", "-S", "-n"}, {"ipset", "save"}, {"iptables-save"}, {"ip6tables-save"}, {"ip", "-o", "address", "show"},
	} {
		if _, err := os.Stat("/proc/net/ip_vs"); command[0] == "ipvsadm" && err != nil {
			continue // the kernel has none for now
		}
		text, err := node.Exec(ctx, command[0], command[1:]...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			words := strings.Fields(line)
			switch {
			case command[0] == "ip" && words[1] != "kube-ipvs0", strings.HasPrefix(line, "#"): // with times
				continue
			case command[0] == "ip": // the rest has numbers and times
				line = words[1] + " " + words[3]
			case strings.HasPrefix(line, ":"): // with counters
				line = words[0]
			case strings.HasPrefix(line, "create "): // with random keys
				line = "create " + words[1]
			}
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out, nil
}

// difference names the lines that only one of two lists has.
func difference(want, now []string) string {
	var out []string
	for _, line := range want {
		if !slices.Contains(now, line) {
			out = append(out, "missing: "+line)
		}
	}
	for _, line := range now {
		if !slices.Contains(want, line) {
			out = append(out, "new: "+line)
		}
	}
	return strings.Join(out, "; ")
}

// sorted are the sorted lines of a text.
func sorted(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// traces are the lines of a node's state that name an address.
func (t test) traces(ctx context.Context, node *cluster.Node, address string) ([]string, error) {
	all, err := state(ctx, node)
	return slices.DeleteFunc(all, func(line string) bool { return !strings.Contains(line, address) }), err
}

// TestAudit compares and repairs nothing.
func TestAudit(tt *testing.T) {
	t := use(tt)
	node := t.cluster.Node(0)
	t.until(t.programmed)
	want := t.settledState(node)
	t.restore()
	t.change(`"enforcement":"Audit"`)
	t.condition(node, v1alpha1.ConditionProgrammed, "True", v1alpha1.ReasonAuditInSync, "")
	t.exec(node, "ipvsadm", "-D", "-t", at(plainIP, 80))
	t.exec(node, "ipset", "flush", "KUBE-CLUSTER-IP")
	deleted, err := state(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.status(node, func(s *v1alpha1.NodeProxyRulesStatus) error {
		if err := hasCondition(s, v1alpha1.ConditionProgrammed, "False", v1alpha1.ReasonAuditDiffers, ""); err != nil {
			return err
		}
		if s.Difference == nil || s.Difference.Count < 2 || !strings.Contains(fmt.Sprint(s.Difference.Examples), plainIP) {
			return fmt.Errorf("the difference is %+v", s.Difference)
		}
		return nil
	})
	if now, err := state(t.Context(), node); err != nil || !slices.Equal(now, deleted) {
		t.Errorf("Audit has changed something: %s, %v", difference(deleted, now), err)
	}
	if err := t.patch(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	t.until(func(ctx context.Context) error {
		now, err := state(ctx, node)
		if err == nil && !slices.Equal(now, want) {
			err = fmt.Errorf("it differs: %s", difference(want, now))
		}
		return err
	})
}

// TestStatistics compares what nodes report with what their kernels have.
func TestStatistics(tt *testing.T) {
	t := use(tt)
	for _, node := range t.cluster.Nodes() {
		t.status(node, func(s *v1alpha1.NodeProxyRulesStatus) error {
			all, err := servers(t.Context(), node)
			if err != nil {
				return err
			}
			reals := 0
			for _, one := range all {
				reals += len(one.reals)
			}
			sets, err := entries(t.Context(), node)
			if err != nil {
				return err
			}
			k := s.Kernel
			if k == nil || int(k.VirtualServers) != len(all) || int(k.RealServers) != reals || int(k.IPSetEntries) != sets {
				return fmt.Errorf("there are %d virtual servers, %d real servers and %d entries of ipsets; it reports %+v", len(all), reals, sets, k)
			}
			if len(all) == 0 || reals == 0 || sets == 0 || k.Chains == 0 || k.Rules == 0 {
				return fmt.Errorf("nothing is counted: %+v", k)
			}
			if s.Mode != v1alpha1.ModeIPVS {
				return fmt.Errorf("it reports mode %q", s.Mode)
			}
			return nil
		})
	}
}
