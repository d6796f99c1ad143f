package parity

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// TestDocumentedDifferences compares docs/parity.md to the list.
func TestDocumentedDifferences(t *testing.T) {
	if err := ipvskernel.Missing(); err != nil {
		t.Skip(err)
	}
	text, err := os.ReadFile("../../../docs/parity.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n### Intended differences in mode IPVS\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, w := range intendedDifferences() {
		if !strings.Contains(section, "\n- **"+w.name+"**") {
			t.Errorf("docs/parity.md does not list %q", w.name)
		}
		if w.reason == "" {
			t.Errorf("%s has no reason", w.name)
		}
	}
}

// nodeState is a node with a Service under external policy Local, and any real servers.
func nodeState(t *testing.T, lines ...string) *state {
	t.Helper()
	s, err := parse(map[string][]string{
		"ipvsadm -Sn": lines,
		"ipset save":  {"create NODEPROXY-NO-LOCAL hash:ip,port family inet hashsize 64 initval 0x1", "add NODEPROXY-NO-LOCAL 203.0.113.1,tcp:1000"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestUnmanagedMustStay: a deleted virtual server of another program counts, although kube-proxy
// deletes it too.
func TestUnmanagedMustStay(t *testing.T) {
	if err := ipvskernel.Missing(); err != nil {
		t.Skip(err)
	}
	preserved := "-A " + unmanaged()[0] + " -s rr"
	other := "-A " + unmanaged()[1] + " -s rr"
	for name, c := range map[string]struct {
		ours []string
		want int
	}{
		"both preserved": {[]string{preserved, other}, 0},
		"one lost":       {[]string{preserved}, 1},
	} {
		theirs, ours := nodeState(t), nodeState(t, c.ours...)
		dropUnmanaged(situation{world: worlds.NewIPVS(1)}, theirs, ours)
		if got := compare(theirs, ours); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestGuardMustExist: what leads to other nodes under policy Local must be in the set, although
// kube-proxy has the same virtual server.
func TestGuardMustExist(t *testing.T) {
	if err := ipvskernel.Missing(); err != nil {
		t.Skip(err)
	}
	w := worlds.NewIPVS(1)
	w.Services = []*worlds.Service{{Object: &corev1.Service{Spec: corev1.ServiceSpec{
		ExternalIPs: []string{"203.0.113.1"}, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
		Ports: []corev1.ServicePort{{Port: 1000, Protocol: corev1.ProtocolTCP}},
	}}}}
	lines := []string{"-A -t 203.0.113.1:1000 -s rr", "-a -t 203.0.113.1:1000 -r 10.244.1.2:8000 -m -w 1"}
	for name, want := range map[string]int{"listed": 0, "not listed": 1} {
		theirs, ours := nodeState(t, lines...), nodeState(t, lines...)
		delete(theirs.sets, "NODEPROXY-NO-LOCAL")
		if want > 0 {
			delete(ours.sets, "NODEPROXY-NO-LOCAL")
		}
		dropNoLocal(situation{world: w}, theirs, ours)
		if got := compare(theirs, ours); len(got) != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestNoLocalIsJudged: a virtual server without real servers still differs if no Service is under
// policy Local without local endpoints.
func TestNoLocalIsJudged(t *testing.T) {
	if err := ipvskernel.Missing(); err != nil {
		t.Skip(err)
	}
	w := worlds.NewIPVS(1)
	w.Services = nil
	const server = "-A -t 203.0.113.1:1000 -s rr"
	theirs, ours := nodeState(t, server, "-a -t 203.0.113.1:1000 -r 10.244.1.2:8000 -m -w 1"), nodeState(t, server)
	delete(theirs.sets, "NODEPROXY-NO-LOCAL")
	dropNoLocal(situation{world: w}, theirs, ours)
	if got := compare(theirs, ours); len(got) != 2 { // the virtual server, and the set
		t.Errorf("%v", got)
	}
}
