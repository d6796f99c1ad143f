package kubelets_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

// childVariable makes this test binary run a cluster: crash waits to be killed
// and keep leaves it running.
const childVariable = "NODEPROXY_TEST_KUBELETS_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childVariable); mode != "" {
		if err := runChild(mode == "keep"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runChild starts a cluster with a pod and states its number.
func runChild(keep bool) error {
	ctx := context.Background()
	c, err := kubelets.Start(ctx, kubelets.Options{Nodes: 1, Progress: os.Stderr, Keep: keep})
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"run", "left", "--image", kubelets.EchoImage, "--", ":8080/tcp"},
		{"wait", "--for=condition=Ready", "--timeout=60s", "pod/left"},
	} {
		if _, err := c.Kubectl(ctx, args...); err != nil {
			return errors.Join(err, c.Stop())
		}
	}
	fmt.Println(c.Number())
	if keep {
		return c.Leave()
	}
	select {}
}

// child runs this test binary as runChild and returns its cluster's number.
func child(t *testing.T, mode string) (*exec.Cmd, int) {
	t.Helper()
	needRoot(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+mode)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var number int
	if _, err := fmt.Fscan(stdout, &number); err != nil {
		t.Fatalf("the child reports no number: %v", errors.Join(err, cmd.Wait()))
	}
	return cmd, number
}

// cleaned removes a cluster without an owner, which fails if something is left.
func cleaned(t *testing.T, number int) {
	t.Helper()
	if err := cluster.Clean(context.Background(), io.Discard, number); err != nil {
		t.Error(err)
	}
}

func TestNothingOutlivesAKilledRun(t *testing.T) {
	cmd, number := child(t, "crash")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	cleaned(t, number)
}

func TestAClusterThatIsLeftRunsOnBesideOthers(t *testing.T) {
	cmd, number := child(t, "keep")
	t.Cleanup(func() { cleaned(t, number) })
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}

	// Both have a node-1 and the same addresses.
	other := start(t, kubelets.Options{Nodes: 1})
	if other.Number() == number {
		t.Fatalf("two clusters have the number %d", number)
	}
	address, pod := runEcho(t, other, "left", other.Node(0))
	answers(t, pod, "tcp", address+":8080", "left")

	kubeconfig := fmt.Sprintf("/run/nodeproxy-test/%d/pki/admin.kubeconfig", number)
	out, err := exec.Command(other.Assets()+"/kubectl", "--kubeconfig", kubeconfig, "exec", "left", "--", "/echo", "-h").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "usage: echo") {
		t.Errorf("the pod of the cluster that was left: %v: %s", err, out)
	}
	left, err := cluster.Leftovers(number)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"link", "process", "/sys/fs/cgroup", "/var/lib/nodeproxy-test", "/run/netns"} {
		if !strings.Contains(strings.Join(left, "\n"), kind) {
			t.Errorf("Leftovers reports no %s of a running cluster: %v", kind, left)
		}
	}
}
