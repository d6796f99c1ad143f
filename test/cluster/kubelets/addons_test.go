package kubelets_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

// productImages makes the images of nodeproxy and returns their archives.
func productImages(t *testing.T) (agent, controller string) {
	t.Helper()
	needRoot(t)
	directory := t.TempDir()
	cmd := exec.Command("../../../hack/images.sh")
	cmd.Env = append(os.Environ(), "OUT="+directory, "VERSION=test")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("making images: %v: %s", err, out)
	}
	return filepath.Join(directory, "nodeproxy-agent.tar"), filepath.Join(directory, "nodeproxy-controller.tar")
}

func TestKubeProxyAndDNS(t *testing.T) {
	agent, controller := productImages(t)
	c := start(t, kubelets.Options{Nodes: 1, KubeProxy: true, CoreDNS: true, Images: []string{agent}})
	eventually(t, 2*time.Minute, c.PodsReady)

	_, pod := runEcho(t, c, "web", c.Node(0))
	kubectl(t, c, "expose", "pod", "web", "--port=80", "--target-port=8080", "--type=NodePort")
	var address string
	eventually(t, time.Minute, func(ctx context.Context) (err error) {
		address, err = lookUp(ctx, pod, "web.default.svc.cluster.local")
		return err
	})
	if want := kubectl(t, c, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"); address != want {
		t.Errorf("the name resolves to %s, not %s", address, want)
	}
	eventuallyAnswers(t, pod, address+":80")

	port := kubectl(t, c, "get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	eventuallyAnswers(t, c.Outside(), c.Node(0).Address().String()+":"+port)
	const external = "203.0.113.10"
	kubectl(t, c, "patch", "service", "web", "-p", fmt.Sprintf(`{"spec": {"externalIPs": [%q]}}`, external))
	if err := c.RouteFromOutside(external, c.Node(0)); err != nil {
		t.Fatal(err)
	}
	eventuallyAnswers(t, c.Outside(), external+":80")

	if err := c.LoadImage(t.Context(), controller); err != nil {
		t.Fatal(err)
	}
	created := kubectl(t, c, "run", "controller", "--image=nodeproxy.io/nodeproxy-controller:test", "--image-pull-policy=Never", "--restart=Never", "--", "-help")
	eventually(t, time.Minute, func(ctx context.Context) error {
		phase, err := c.Kubectl(ctx, "get", "pod", "controller", "-o", "jsonpath={.status.phase}")
		if err == nil && phase != "Succeeded" {
			err = fmt.Errorf("%s: the phase is %s", strings.TrimSpace(created), phase)
		}
		return err
	})
}

// eventuallyAnswers waits until a connection is answered.
func eventuallyAnswers(t *testing.T, from *cluster.Place, address string) {
	t.Helper()
	eventually(t, time.Minute, func(context.Context) error {
		_, err := from.Dial(t.Context(), "tcp", address)
		return err
	})
}

// lookUp asks the cluster's DNS, by its Service, for the address of a name.
func lookUp(ctx context.Context, from *cluster.Place, name string) (address string, err error) {
	var conn net.Conn
	err = from.Do(func() (err error) {
		conn, err = net.Dial("udp", "10.96.0.10:53")
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	resolver := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	addresses, err := resolver.LookupHost(ctx, name+".")
	if err != nil {
		return "", err
	}
	return addresses[0], nil
}

func TestNodesRegisterWithTaints(t *testing.T) {
	c := start(t, kubelets.Options{Nodes: 1, Taints: []corev1.Taint{{Key: "nodeproxy.io/agent-not-ready", Effect: "NoSchedule"}}})
	if taint := kubectl(t, c, "get", "node", "node-1", "-o", "jsonpath={.spec.taints[0].key}:{.spec.taints[0].effect}"); taint != "nodeproxy.io/agent-not-ready:NoSchedule" {
		t.Errorf("the node has the taint %q", taint)
	}
}
