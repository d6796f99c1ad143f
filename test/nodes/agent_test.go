package nodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
)

// TestBesideKubeProxy starts the agent while the real kube-proxy runs: nothing
// is touched. Once kube-proxy has stopped, the agent takes over in place.
func TestBesideKubeProxy(t *testing.T) {
	t.Parallel()
	e := start(t)
	kubeProxy := e.startKubeProxy()
	e.until(func(ctx context.Context) error {
		if err := e.apiServerAnswers(ctx); err != nil {
			return fmt.Errorf("%w; %s", err, kubeProxy.Tail())
		}
		return kubeProxySynced(ctx, e.node)
	})

	before := e.rules()
	e.until(func(context.Context) error { // kube-proxy may sync once more
		if now := e.rules(); !slices.Equal(before, now) {
			before = now
			return errors.New("kube-proxy still writes")
		}
		return nil
	})
	e.startAgent()
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, `answers "iptables"`)
	e.expect(v1alpha1.ConditionConflictingProxy, metav1.ConditionTrue, v1alpha1.ReasonConflictingProxy, "Stop it on this node")
	e.until(e.ready) // there is nothing more to do for it, so that a rollout may go on
	if diff := cmp.Diff(before, e.rules()); diff != "" {
		t.Errorf("the agent touched rules beside kube-proxy (-before +after):\n%s", diff)
	}

	if err := kubeProxy.Stop(); err != nil {
		t.Fatal(err)
	}
	e.programmed()
	if err := e.apiServerAnswers(t.Context()); err != nil {
		t.Error(err)
	}
	after := e.rules()
	for _, rule := range before {
		// kube-proxy's canaries go: should one come again, kube-proxy is back.
		if !slices.Contains(after, rule) && !strings.Contains(rule, "KUBE-PROXY-CANARY") {
			t.Errorf("rewritten, though it was right: %s", rule)
		}
	}
}

// TestKilledAgentRewritesNoRule compares the handles of all rules.
func TestKilledAgentRewritesNoRule(t *testing.T) {
	t.Parallel()
	e := start(t)
	agent := e.startAgent()
	e.programmed()
	e.until(e.apiServerAnswers)
	before := e.rules()
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	// What changes while no agent runs is written by the next one, and nothing
	// else. The change also shows when it has finished.
	if _, err := e.nodeproxy.Cluster.Kubectl(t.Context(), "create", "service", "clusterip", "later", "--tcp=80", "--clusterip=10.96.77.77"); err != nil {
		t.Fatal(err)
	}
	e.startAgent()
	e.until(func(context.Context) error {
		for _, rule := range e.rules() {
			if strings.Contains(rule, "10.96.77.77") {
				return nil
			}
		}
		return fmt.Errorf("the new agent has not written the new Service")
	})
	e.programmed()
	after := e.rules()
	for _, rule := range before {
		if !slices.Contains(after, rule) {
			t.Errorf("rewritten: %s", rule)
		}
	}
}

// TestWithoutIPTables starts an agent that finds no iptables, and then gives it
// to it.
func TestWithoutIPTables(t *testing.T) {
	t.Parallel()
	e := start(t)
	path := t.TempDir()
	command, err := e.nodeproxy.AgentCommand(e.node)
	if err != nil {
		t.Fatal(err)
	}
	command.Env = []string{"PATH=" + path}
	if _, err := e.node.Start(command); err != nil {
		t.Fatal(err)
	}
	e.expect(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonUnsupported, "install the iptables package")
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonFailed, "iptables not found")
	for _, program := range []string{"iptables", "iptables-save", "iptables-restore"} {
		real, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(real, filepath.Join(path, program)); err != nil {
			t.Fatal(err)
		}
	}
	e.programmed()
	e.until(e.apiServerAnswers)
}

// TestKernelWithoutIPVS asks for mode IPVS where the kernel does not have it.
func TestKernelWithoutIPVS(t *testing.T) {
	if ipvskernel.Here() {
		t.Skip("this kernel has IPVS")
	}
	t.Parallel()
	e := start(t)
	e.startAgent()
	e.programmed()
	e.until(e.apiServerAnswers)
	before := e.rules()
	e.patch(`{"spec":{"settings":{"mode":"IPVS"}}}`)
	e.expect(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonUnsupported, "modprobe ip_vs")
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonFailed, "spec.settings.mode")
	if diff := cmp.Diff(before, e.rules()); diff != "" {
		t.Errorf("rules changed (-before +after):\n%s", diff)
	}
	e.patch(`{"spec":{"settings":{"fallback":"IPTables"}}}`)
	e.expect(v1alpha1.ConditionModeFallback, metav1.ConditionTrue, v1alpha1.ReasonKernelLacksMode, "modprobe ip_vs")
	e.expect(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	e.programmed()
	if diff := cmp.Diff(before, e.rules()); diff != "" {
		t.Errorf("fallen back: rules changed (-before +after):\n%s", diff)
	}
	e.patch(`{"spec":{"settings":{"mode":null,"fallback":null}}}`)
	e.expect(v1alpha1.ConditionModeFallback, metav1.ConditionFalse, v1alpha1.ReasonNoFallback, "")
	e.programmed()
	if diff := cmp.Diff(before, e.rules()); diff != "" {
		t.Errorf("back again: rules changed (-before +after):\n%s", diff)
	}
}

func (e *env) patch(patch string) {
	e.Helper()
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	err := e.nodeproxy.Cluster.Client().Patch(e.Context(), np, client.RawPatch("application/merge-patch+json", []byte(patch)))
	if err != nil {
		e.Fatal(err)
	}
}
