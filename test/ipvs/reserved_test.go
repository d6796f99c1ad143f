package ipvs

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestAPIServerAddress has a Service ask for the API server's address. Bound to a node, it would
// cut the node off, and the deletion of the Service would never arrive.
func TestAPIServerAddress(tt *testing.T) {
	t := use(tt)
	const apiServer = "172.20.0.1" // cluster.APIServerURL
	ip := t.newIP()
	t.create(service("at-the-api", "web", func(s *corev1.ServiceSpec) { s.ClusterIP, s.ExternalIPs = ip, []string{apiServer} }))
	for i, node := range t.cluster.Nodes() {
		t.answers(t.visitors[i].Place, "tcp", at(ip, 80), "web-1", "web-2", "web-3") // all else of it is programmed
		if out := t.exec(node, "ip", "address", "show"); strings.Contains(out, " "+apiServer+"/") {
			t.Errorf("%s has the API server's address:\n%s", node.Name(), out)
		}
		if s, err := virtual(t.Context(), node, "tcp", at(apiServer, 80)); err == nil {
			t.Errorf("%s has a virtual server at the API server's address: %+v", node.Name(), *s)
		}
	}
	t.until(t.programmed) // the report arrives
}
