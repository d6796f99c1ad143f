package kubelets_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// start starts a cluster that ends with the test and leaves nothing behind.
func start(t *testing.T, options kubelets.Options) *kubelets.Cluster {
	t.Helper()
	needRoot(t)
	options.Progress = os.Stderr
	c, err := kubelets.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// eventually waits until f returns nil.
func eventually(t *testing.T, limit time.Duration, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %v", limit, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func kubectl(t *testing.T, c *kubelets.Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// runEcho runs an echo server on a node and returns its address and its place.
func runEcho(t *testing.T, c *kubelets.Cluster, name string, node *kubelets.Node) (string, *cluster.Place) {
	t.Helper()
	overrides := fmt.Sprintf(`{"spec": {"nodeName": %q}}`, node.Name())
	kubectl(t, c, "run", name, "--image", kubelets.EchoImage, "--overrides", overrides, "--",
		"-name", name, ":8080/tcp", ":8080/udp", ":8081/http")
	kubectl(t, c, "wait", "--for=condition=Ready", "--timeout=60s", "pod/"+name)
	place, err := c.Pod(t.Context(), "default", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(place.Release)
	return kubectl(t, c, "get", "pod", name, "-o", "jsonpath={.status.podIP}"), place
}

func answers(t *testing.T, from *cluster.Place, network, address, want string) {
	t.Helper()
	answer, err := from.Dial(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Server != want {
		t.Errorf("%s %s is answered by %s, not by %s", network, address, answer, want)
	}
}

func TestPodsOfRealNodes(t *testing.T) {
	c := start(t, kubelets.Options{Nodes: 2, Zones: []string{"a", "b"}})

	address1, one := runEcho(t, c, "one", c.Node(0))
	address2, two := runEcho(t, c, "two", c.Node(1))
	for _, network := range []string{"tcp", "udp"} {
		answers(t, one, network, address2+":8080", "two")
		answers(t, two, network, address1+":8080", "one")
		answers(t, one, network, address1+":8080", "one")
		answers(t, c.ControlPlane(), network, address1+":8080", "one")
	}
	if out := kubectl(t, c, "exec", "one", "--", "/echo", "-h"); out != "" {
		t.Errorf("exec printed %q", out)
	}
	if out := kubectl(t, c, "logs", "one"); !strings.Contains(out, "ready") {
		t.Errorf("logs printed %q", out)
	}
	if zone := kubectl(t, c, "get", "node", "node-2", "-o", `jsonpath={.metadata.labels.topology\.kubernetes\.io/zone}`); zone != "b" {
		t.Errorf("node-2 is in zone %q", zone)
	}

	t.Run("nothing proxies", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := one.Connect(ctx, "tcp", "10.96.0.1:443"); !errors.Is(err, cluster.ErrRejected) {
			t.Errorf("the API server's Service: %v", err)
		}
	})
	t.Run("a kubelet stops and starts", func(t *testing.T) {
		if err := c.Node(0).Kubelet().Stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Kubectl(t.Context(), "logs", "one"); err == nil {
			t.Error("logs can be read without a kubelet")
		}
		answers(t, two, "tcp", address1+":8080", "one")
		if err := c.Node(0).StartKubelet(); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, func(ctx context.Context) error {
			_, err := c.Kubectl(ctx, "logs", "one")
			return err
		})
	})
	t.Run("a node is stopped and started", func(t *testing.T) {
		if err := c.Node(1).Stop(); err != nil {
			t.Fatal(err)
		}
		if err := c.Node(1).Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, func(ctx context.Context) error {
			address, err := c.Kubectl(ctx, "get", "pod", "two", "-o", "jsonpath={.status.podIP}")
			if err != nil {
				return err
			}
			_, err = one.Dial(ctx, "tcp", address+":8080")
			return err
		})
	})
	t.Run("a node is deleted and created again", func(t *testing.T) {
		before := kubectl(t, c, "get", "node", "node-2", "-o", "jsonpath={.metadata.uid}")
		if err := c.Node(1).Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		kubectl(t, c, "delete", "pod", "two", "--force", "--ignore-not-found")
		if err := c.Node(1).Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := kubectl(t, c, "get", "node", "node-2", "-o", "jsonpath={.metadata.uid}"); after == before {
			t.Error("it is the same Node object")
		}
		address, again := runEcho(t, c, "two", c.Node(1))
		answers(t, one, "tcp", address+":8080", "two")
		answers(t, again, "tcp", address1+":8080", "one")
	})
}
