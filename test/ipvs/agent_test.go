package ipvs

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// TestAgentsChangeTheMode asks for mode IPVS and back, by the NodeProxy. Agents
// take the device that they make themselves for nobody else's.
func TestAgentsChangeTheMode(t *testing.T) {
	w := use(t)
	pod, err := w.cluster.Node(0).RunPod(t.Context(), cluster.PodSpec{Name: "moving", Labels: map[string]string{"app": "moving"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.cluster.Kubectl(t.Context(), "create", "service", "clusterip", "moving", "--tcp=80:8080", "--clusterip=10.96.0.78"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.ask(t, `{"mode":null,"ipvs":null}`) })
	for range 2 {
		w.ask(t, `{"mode":"IPVS","ipvs":{"scheduler":"lc"}}`)
		w.runs(t, v1alpha1.ModeIPVS)
		answers(t, w.cluster.Node(1).Place, "tcp", "10.96.0.78:80", pod.Name())
		w.ask(t, `{"mode":"IPTables"}`)
		w.runs(t, v1alpha1.ModeIPTables)
		answers(t, w.cluster.Node(1).Place, "tcp", "10.96.0.78:80", pod.Name())
		for _, node := range w.cluster.Nodes() {
			until(t, func(ctx context.Context) error { return gone(ctx, node) })
		}
	}
}

// ask changes the settings of the NodeProxy.
func (w *world) ask(t *testing.T, settings string) {
	t.Helper()
	// After the test, too.
	_, err := w.cluster.Kubectl(context.WithoutCancel(t.Context()), "patch", "nodeproxy", "cluster", "--type=merge", "-p", `{"spec":{"settings":`+settings+`}}`)
	if err != nil {
		t.Fatal(err)
	}
}

// runs waits until all nodes run a mode and hold what is wanted.
func (w *world) runs(t *testing.T, mode v1alpha1.ProxyMode) {
	t.Helper()
	until(t, func(ctx context.Context) error {
		out, err := w.cluster.Kubectl(ctx, "get", "nodeproxyrules", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.status.mode} {range .status.conditions[*]}{.type}={.status}:{.reason}:{.message} {end}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if !strings.Contains(line, " "+string(mode)+" ") || !strings.Contains(line, "Programmed=True:Programmed:") || strings.Contains(line, "ConflictingProxy=True") {
				return fmt.Errorf("not in mode %s: %s", mode, line)
			}
		}
		return w.programmed(ctx)
	})
}

// gone returns nil if nothing of mode IPVS is left on a node.
func gone(ctx context.Context, node *cluster.Node) error {
	if out, err := node.Exec(ctx, "ip", "link", "show", "kube-ipvs0"); err == nil {
		return fmt.Errorf("kube-ipvs0 is left on %s: %s", node.Name(), out)
	}
	out, err := node.Exec(ctx, "cat", "/proc/net/ip_vs")
	if err != nil {
		return err
	}
	if strings.Contains(out, "0A60004E:0050") { // 10.96.0.78:80
		return fmt.Errorf("virtual servers are left on %s: %s", node.Name(), out)
	}
	return nil
}
