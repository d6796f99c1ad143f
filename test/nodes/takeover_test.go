package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// TestTakeover hands the nodes of a cluster from the real kube-proxy to the
// agents, back, and to the agents again, while connections are made to Services
// of all kinds and others are held. At the end the agents' rules are removed.
// One node is of the nf_tables variant of iptables and one of the legacy one.
func TestTakeover(t *testing.T) {
	k := newTakeover(t)
	var before [][]string
	for _, node := range k.cluster.Nodes() {
		k.makeOthersRules(node)
		before = append(before, k.saved(node))
	}
	targets := k.makeServices()
	k.startKubeProxies()
	l := startLoad(t, pace, targets)

	l.during("kube-proxy runs", 3*time.Second, func() {})
	l.during("kube-proxy stops, agents start", 3*time.Second, func() {
		k.stop()
		k.startAgents()
	})
	k.nothingWritten("taking over from kube-proxy")
	l.during("agents run", 3*time.Second, func() {})
	l.during("agents stop, kube-proxy starts", 3*time.Second, func() {
		k.stop()
		k.startKubeProxies()
	})
	l.during("and agents again", 5*time.Second, func() {
		k.stop()
		k.startAgents()
	})
	k.nothingWritten("taking over again")
	took := time.Since(l.Begun()).Seconds()
	l.End()
	t.Logf("in all: %d new TCP connections in %.0f s (%.0f/s), %d new UDP flows, %d connections held", l.Answered("tcp"), took, float64(l.Answered("tcp"))/took, l.Answered("udp"), len(targets))

	k.stop()
	for i, node := range k.cluster.Nodes() {
		command := k.agentCommand(node)
		cleanup := exec.Command(command.Path, "cleanup")
		cleanup.Env = command.Env
		out := strings.Builder{}
		cleanup.Stdout, cleanup.Stderr = &out, &out
		if err := node.Do(cleanup.Run); err != nil {
			t.Fatalf("cleanup: %v: %s", err, out.String())
		}
		if diff := cmp.Diff(before[i], k.saved(node)); diff != "" {
			t.Errorf("%s: cleaning has left something, or removed something of others (-before anything ran +after):\n%s", node.Name(), diff)
		}
	}
}

// take is a cluster on whose nodes either kube-proxy runs or agents do.
type take struct {
	*env
	cluster  *cluster.Cluster
	variants map[string]string // by node
	former   string            // kube-proxy's mode
	mode     v1alpha1.ProxyMode
	paths    string // directory with the nodes' PATHs
	run      []*cluster.Process
	looked   map[string]int // by node: how often its agent had when silence was called
}

func newTakeover(t *testing.T) *take { return takeOf(startNodes(t, 2)) }

// takeOf has one node of the legacy variant of iptables, and no others.
func takeOf(e *env) *take {
	k := &take{env: e, cluster: e.nodeproxy.Cluster, paths: e.TempDir(), former: "iptables", mode: v1alpha1.ModeIPTables,
		variants: map[string]string{"node-1": "nf_tables", "node-2": "legacy", "node-3": "nf_tables"}}
	for _, node := range k.cluster.Nodes() {
		k.makePaths(node)
	}
	return k
}

// usual is the PATH of a node's kube-proxy, which has one variant alone.
func (k *take) usual(node *cluster.Node) string { return filepath.Join(k.paths, node.Name()+"-usual") }

// both is the PATH of a node's agent: programs of both variants, where the plain
// names are of the one that the agent must not choose, and where the right one
// notes what it is asked to write.
func (k *take) both(node *cluster.Node) string { return filepath.Join(k.paths, node.Name()+"-both") }

// note is the file with what a node's agent has written.
func (k *take) note(node *cluster.Node) string { return filepath.Join(k.paths, node.Name()+".written") }

// multi is the program of a variant that stands behind all its names.
func (k *take) multi(variant string) string {
	name := map[string]string{"nf_tables": "xtables-nft-multi", "legacy": "xtables-legacy-multi"}[variant]
	path, err := exec.LookPath(name)
	if err != nil {
		k.Fatalf("%s not found: apt-get install iptables", name)
	}
	return path
}

func (k *take) link(path, variant string) {
	if err := os.Symlink(k.multi(variant), path); err != nil {
		k.Fatal(err)
	}
}

// makePaths makes the directories usual and both of a node.
func (k *take) makePaths(node *cluster.Node) {
	usual, both, variant := k.usual(node), k.both(node), k.variants[node.Name()]
	if err := errors.Join(os.Mkdir(usual, 0o700), os.Mkdir(both, 0o700)); err != nil {
		k.Fatal(err)
	}
	nft, err := exec.LookPath("nft")
	if err != nil {
		k.Fatal("nft not found: apt-get install nftables")
	}
	if err := os.Symlink(nft, filepath.Join(usual, "nft")); err != nil { // kube-proxy in mode nftables runs it
		k.Fatal(err)
	}
	right, wrong := "-nft", "legacy"
	if variant == "legacy" {
		right, wrong = "-legacy", "nf_tables"
	}
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, end := range []string{"", "-save", "-restore"} {
			k.link(filepath.Join(usual, command+end), variant)
			k.link(filepath.Join(both, command+end), wrong)
		}
		k.link(filepath.Join(both, command+right+"-save"), variant)
		for end, note := range map[string]string{
			"":         fmt.Sprintf("echo %s \"$@\" >>%s; exec %s %s \"$@\"", command, k.note(node), k.multi(variant), command),
			"-restore": fmt.Sprintf("/usr/bin/tee -a %s | %s %s-restore \"$@\"", k.note(node), k.multi(variant), command),
		} {
			if err := os.WriteFile(filepath.Join(both, command+right+end), []byte("#!/bin/sh\n"+note+"\n"), 0o700); err != nil {
				k.Fatal(err)
			}
		}
	}
}

// makeOthersRules makes what a kubelet and an administrator have on a node.
func (k *take) makeOthersRules(node *cluster.Node) {
	for _, command := range []string{"iptables", "ip6tables"} {
		own, local, far := "fd00:2::/64", "::1/128", "2001:db8:9::1"
		if command == "iptables" {
			own, local, far = "192.0.2.0/24", "127.0.0.0/8", "192.0.2.1"
		}
		for _, args := range []string{
			"-t mangle -N KUBE-IPTABLES-HINT",
			"-t mangle -N KUBE-KUBELET-CANARY", "-t nat -N KUBE-KUBELET-CANARY", "-N KUBE-KUBELET-CANARY",
			"-N KUBE-FIREWALL", "-I INPUT -j KUBE-FIREWALL", "-I OUTPUT -j KUBE-FIREWALL",
			"-A KUBE-FIREWALL ! -s " + local + " -d " + local + " -m comment --comment block_incoming_localnet_connections -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
			"-N SITE", "-A SITE -s " + far + " -j DROP", "-A FORWARD -j SITE",
			"-t nat -A POSTROUTING -s " + own + " -j MASQUERADE",
		} {
			words := strings.Fields(args)
			for i, word := range words { // the kubelet's comment has blanks
				words[i] = strings.ReplaceAll(word, "_", " ")
			}
			if _, err := node.Exec(k.Context(), filepath.Join(k.usual(node), command), words...); err != nil {
				k.Fatal(err)
			}
		}
	}
}

var chainCounters = regexp.MustCompile(` \[\d+:\d+\]`)

// saved is all that both variants hold on a node, in order within each chain.
func (k *take) saved(node *cluster.Node) []string {
	var out []string
	for _, variant := range []string{"nf_tables", "legacy"} {
		for _, save := range []string{"iptables-save", "ip6tables-save"} {
			text, err := node.Exec(k.Context(), k.multi(variant), save)
			if err != nil {
				k.Fatal(err)
			}
			for line := range strings.Lines(text) {
				line = chainCounters.ReplaceAllString(strings.TrimSpace(line), "")
				name, policy, _ := strings.Cut(line, " ")
				switch {
				case strings.HasPrefix(line, ":") && policy == "-":
					out = append(out, variant+" "+save+" "+name)
				case strings.HasPrefix(line, "-A"):
					out = append(out, variant+" "+save+" "+line)
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b string) int { return strings.Compare(place(a), place(b)) })
	return out
}

// place is what a line of saved is sorted by: rules of one chain stay in order.
func place(line string) string {
	words := strings.Fields(line)
	return strings.Join(words[:min(4, len(words))], " ")
}

// stop ends what runs on the nodes.
func (k *take) stop() {
	for _, process := range k.run {
		if err := process.Stop(); err != nil {
			k.Error(err)
		}
	}
	k.run = nil
}

// startKubeProxies starts kube-proxy on all nodes and waits until it has written
// all that it wants to.
func (k *take) startKubeProxies() {
	directory, err := binaries.Ensure(k.Context(), os.Stderr, binaries.KubeProxy)
	if err != nil {
		k.Fatal(err)
	}
	kubeconfig, err := k.cluster.KubeconfigFor("kube-proxy", "system:kube-proxy")
	if err != nil {
		k.Fatal(err)
	}
	for _, node := range k.cluster.Nodes() {
		process, err := node.Start(cluster.Command{
			Path: filepath.Join(directory, "kube-proxy"), Env: []string{"PATH=" + k.usual(node)},
			Args: []string{
				"--kubeconfig", kubeconfig, "--hostname-override", node.Name(), "--proxy-mode", k.former, "--nodeport-addresses", "0.0.0.0/0,::/0",
				"--cluster-cidr", cluster.PodRanges, "--conntrack-max-per-core", "0",
			},
		})
		if err != nil {
			k.Fatal(err)
		}
		k.run = append(k.run, process)
	}
	for _, node := range k.cluster.Nodes() {
		k.until(func(ctx context.Context) error { return kubeProxySynced(ctx, node) })
	}
	for _, node := range k.cluster.Nodes() {
		before := k.saved(node)
		k.until(func(context.Context) error {
			if now := k.saved(node); !slices.Equal(before, now) {
				before = now
				return errors.New("kube-proxy still writes")
			}
			return nil
		})
	}
}

// kubeProxySynced asks kube-proxy's metrics whether it has written its rules for
// both families since it started.
func kubeProxySynced(ctx context.Context, node *cluster.Node) error {
	text, err := node.Get(ctx, "http://127.0.0.1:10249/metrics")
	if err != nil {
		return err
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		if !regexp.MustCompile(`kubeproxy_sync_proxy_rules_last_timestamp_seconds\{ip_family="` + family + `"\} [1-9]`).MatchString(text) {
			return fmt.Errorf("kube-proxy of %s has not synced %s yet", node.Name(), family)
		}
	}
	return nil
}

func (k *take) agentCommand(node *cluster.Node) cluster.Command {
	command, err := k.nodeproxy.AgentCommand(node)
	if err != nil {
		k.Fatal(err)
	}
	command.Env = []string{"PATH=" + k.both(node)}
	return command
}

// startAgents starts the agents of all nodes and waits until they report that
// the kernel has the desired state.
func (k *take) startAgents() {
	started := time.Now().Truncate(time.Second)
	for _, node := range k.cluster.Nodes() {
		if err := os.WriteFile(k.note(node), nil, 0o600); err != nil {
			k.Fatal(err)
		}
		process, err := node.Start(k.agentCommand(node))
		if err != nil {
			k.Fatal(err)
		}
		k.run = append(k.run, process)
	}
	for _, node := range k.cluster.Nodes() {
		k.until(func(ctx context.Context) error {
			if err := install.Running(k.run...); err != nil {
				return err
			}
			rules := &v1alpha1.NodeProxyRules{}
			if err := k.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
				return err
			}
			condition := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
			agent, families := rules.Status.Agent, rules.Status.Families
			if condition == nil || agent == nil || agent.StartTime.Time.Before(started) {
				return fmt.Errorf("the new agent of %s has not reported yet", node.Name())
			}
			if condition.Reason != v1alpha1.ReasonProgrammed {
				return fmt.Errorf("%s: %s: %s", node.Name(), condition.Reason, condition.Message)
			}
			if want := []string{"IPv4", "IPv6"}; !slices.Equal(families, want) {
				return fmt.Errorf("%s programs %q, want %q", node.Name(), families, want)
			}
			if rules.Status.Mode != k.mode {
				return fmt.Errorf("%s runs mode %s", node.Name(), rules.Status.Mode)
			}
			if want := k.variants[node.Name()]; k.mode == v1alpha1.ModeIPTables && !strings.Contains(agent.IPTables, want) || strings.Contains(condition.Message, ". Restrictions: ") {
				return fmt.Errorf("%s uses %s, want %s, and reports: %s", node.Name(), agent.IPTables, want, condition.Message)
			}
			return nil
		})
	}
}

// expected are the lines by which an agent's rules differ from kube-proxy's: it
// removes those by which kube-proxy counts what comes to node ports on
// 127.0.0.0/8, and kube-proxy's canaries.
var expected = regexp.MustCompile(`^(\*(nat|filter|mangle)|-X KUBE-PROXY-CANARY|-D KUBE-NODEPORTS -d 127\.0\.0\.0/8 .* --nfacct-name +localhost_nps_accepted_pkts .*|COMMIT)$`)

// readOnly are calls that write nothing.
var readOnly = regexp.MustCompile(`^ip6?tables (--version|.* -[SC] .*)$`)

// nothingWritten fails if the agents wrote anything that was right since they
// were started.
func (k *take) nothingWritten(when string) {
	k.Helper()
	for _, node := range k.cluster.Nodes() {
		text, err := os.ReadFile(k.note(node))
		if err != nil {
			k.Fatal(err)
		}
		var written []string
		removed := 0
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if strings.Contains(line, "nfacct") {
				removed++
			}
			if !readOnly.MatchString(line) && !expected.MatchString(line) {
				written = append(written, line)
			}
		}
		if len(text) == 0 {
			k.Errorf("%s: no call of a program was noted", node.Name())
		}
		k.Logf("%s: %s: %d rules that only count are removed, %d other lines written", node.Name(), when, removed, len(written))
		if len(written) > 0 {
			k.Errorf("%s: %s: written, though all was right:\n  %s", node.Name(), when, strings.Join(written[:min(20, len(written))], "\n  "))
		}
	}
}
