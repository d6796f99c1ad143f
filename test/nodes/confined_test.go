package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// confine runs what follows as the container of config/agent/daemonset.yaml does:
// the state directory, the lock of iptables and the sysctls of the network, mounted
// elsewhere, can be written, no other file; and of root's capabilities two are left.
const confine = `set -e
state=$1 sysctls=$2
shift 2
touch /run/xtables.lock
mkdir -p "$sysctls/net"
mount --bind "$state" "$state"
mount --bind /run/xtables.lock /run/xtables.lock
mount --bind /proc/sys/net "$sysctls/net"
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
while read -r _ _ _ _ point _; do
	case $point in
	"$state" | "$sysctls/net" | /run/xtables.lock | /proc | /proc/* | /dev | /dev/*) ;;
	*) mount -o remount,bind,ro "$point" ;;
	esac
done </proc/self/mountinfo
for directory in / /tmp /run /var/tmp; do
	if touch "$directory/can-be-written" 2>/dev/null; then
		echo "$directory can be written" >&2
		exit 1
	fi
done
exec setpriv --no-new-privs --bounding-set=-all,+net_admin,+net_raw "$@"
`

// TestConfinedAgent runs the agent as its container does, with each variant of
// iptables: it lacks nothing but the sysctls, unless it knows where they are,
// and reports it.
func TestConfinedAgent(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.patch(`{"spec":{"settings":{"conntrack":{"tcpBeLiberal":"Enabled"}}}}`)
	agent := e.startConfined("--sysctl-directory", "/proc/sys")
	e.programmed()
	e.until(e.apiServerAnswers)
	message := e.message()
	for _, want := range []string{"NodePorts do not answer on 127.0.0.1", "read-only file system", "net.netfilter.nf_conntrack_tcp_be_liberal is 0, not 1", "--sysctl-directory"} {
		if !strings.Contains(message, want) {
			t.Errorf("Programmed reports %q, without %q", message, want)
		}
	}
	e.stopConfined(agent)
	e.sysctls("0 0")
	for _, variant := range []string{"nf_tables", "legacy"} {
		e.exec(filepath.Join(e.nodeproxy.Bin, "nodeproxy-agent"), "cleanup")
		agent := e.startConfined("--iptables-variant", variant)
		e.until(e.apiServerAnswers)
		e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		e.until(func(context.Context) error {
			if message := e.message(); message != "The desired state is programmed." {
				return fmt.Errorf("%s: Programmed reports %s", variant, message)
			}
			return nil
		})
		e.sysctls("1 1")
		e.stopConfined(agent)
		log, err := os.ReadFile(agent.Log())
		if err != nil {
			t.Fatal(err)
		}
		_, log, _ = bytes.Cut(log, []byte("Stopped; the rules"))
		for _, word := range []string{"read-only", "ermission", "not permitted"} {
			if bytes.Contains(log, []byte(word)) {
				t.Errorf("%s: the log reports %q: %s", variant, word, agent.Tail())
			}
		}
	}
}

// stopConfined stops the agent, which writes the checkpoint, and removes that.
func (e *env) stopConfined(agent *cluster.Process) {
	e.Helper()
	if err := errors.Join(agent.Stop(), os.Remove(filepath.Join(e.state(), e.node.Name()+".checkpoint"))); err != nil {
		e.Fatal(err)
	}
}

// sysctls compares route_localnet and tcp_be_liberal.
func (e *env) sysctls(want string) {
	e.Helper()
	got := strings.Join(strings.Fields(e.exec("sysctl", "-n", "net.ipv4.conf.all.route_localnet", "net.netfilter.nf_conntrack_tcp_be_liberal")), " ")
	if got != want {
		e.Errorf("the sysctls are %s, want %s", got, want)
	}
}

// startConfined starts the node's agent so.
func (e *env) startConfined(args ...string) *cluster.Process {
	e.Helper()
	command, err := e.nodeproxy.AgentCommand(e.node)
	if err != nil {
		e.Fatal(err)
	}
	sysctls := filepath.Join(e.nodeproxy.Cluster.Dir(), "sysctls-"+e.node.Name())
	agent := append([]string{command.Path}, command.Args...)
	agent = append(append(agent, "--sysctl-directory", sysctls), args...)
	command.Name, command.Path = "nodeproxy-agent", "/usr/bin/unshare"
	command.Args = append([]string{"--mount", "--propagation", "private", "bash", "-c", confine, "confine", e.state(), sysctls}, agent...)
	process, err := e.node.Start(command)
	if err != nil {
		e.Fatal(err)
	}
	return process
}

// state is the agent's directory of the node.
func (e *env) state() string {
	return filepath.Join(e.nodeproxy.Cluster.Dir(), "state-"+e.node.Name())
}

// message waits until the node has reported an agent that runs now, and returns
// the message of Programmed.
func (e *env) message() string {
	e.Helper()
	message := ""
	e.until(func(ctx context.Context) error {
		out, err := e.nodeproxy.Cluster.Kubectl(ctx, "get", "nodeproxyrules", e.node.Name(), "-o", `jsonpath={.status.conditions[?(@.type=="Programmed")].message}`)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if message = out; message == "" {
			return errors.New("no message")
		}
		return nil
	})
	return message
}
