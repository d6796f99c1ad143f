package ipvs

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// TestIPTablesMode shows that the other mode works in this kernel: what fails in
// mode IPVS alone is that mode's.
func TestIPTablesMode(t *testing.T) {
	w := use(t)
	pod, err := w.cluster.Node(0).RunPod(t.Context(), cluster.PodSpec{Name: "first", Labels: map[string]string{"app": "first"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.cluster.Kubectl(t.Context(), "create", "service", "clusterip", "first", "--tcp=80:8080", "--clusterip=10.96.0.77"); err != nil {
		t.Fatal(err)
	}
	answers(t, w.cluster.Node(1).Place, "tcp", "10.96.0.77:80", pod.Name())
}
