package scenarios

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
)

// recorder is a kernel that remembers what it was given.
type recorder struct {
	*iptablesmodel.Kernel
	inputs []string
	// reject names what iptables-restore does not take; empty: nothing.
	reject string
	// between is called after each part that the kernel takes as a whole.
	between func()
}

func (r *recorder) Restore(input string) error {
	r.inputs = append(r.inputs, input)
	if r.reject != "" && strings.Contains(input, r.reject) {
		return errors.New("no such match")
	}
	for part := range strings.SplitAfterSeq(input, "COMMIT\n") {
		if err := r.Kernel.Restore(part); err != nil {
			return err
		}
		if r.between != nil {
			r.between()
		}
	}
	return nil
}

// newSyncs is a world with Services of two endpoints each.
func newSyncs(t *testing.T, services int) *world {
	w := newWorld(t, dataplane.IPv4)
	for i := range services {
		w.Add(numbered(i, 1, 2))
	}
	w.Sync()
	w.recorder.inputs = nil
	return w
}

// numbered is a Service with some of the endpoints 10.<180+i>.0.<n>.
func numbered(i int, endpoints ...int) Service {
	s := Service{Name: fmt.Sprintf("svc%d", i), CIP: fmt.Sprintf("172.30.0.%d", 41+i)}
	for _, n := range endpoints {
		s.Endpoints = append(s.Endpoints, fmt.Sprintf("R 10.%d.%d.%d", 180+i, n/250, n%250))
	}
	return s
}

// The numbers are those of rows for which docs/parity.md shows how ours differ.

// TestRow134: a changed Service writes its own chains that differ and nothing else.
func TestRow134(t *testing.T) {
	w := newSyncs(t, 3)
	w.Add(numbered(1, 1, 3))
	w.Sync()
	if len(w.recorder.inputs) != 1 {
		t.Fatalf("inputs %q", w.recorder.inputs)
	}
	for line := range strings.Lines(w.recorder.inputs[0]) {
		switch {
		case line == "*nat\n", line == "COMMIT\n", strings.HasPrefix(line, ":KUBE-S"), strings.HasPrefix(line, "-X KUBE-SEP-"):
		case strings.HasPrefix(line, "-A KUBE-SVC-") && strings.Contains(line, "ns1/svc1:p80"),
			strings.HasPrefix(line, "-A KUBE-SEP-") && strings.Contains(line, "10.181.0.3"):
		default:
			t.Errorf("also written: %s", line)
		}
	}
	w.sees(POD, "172.30.0.42:80", "10.181.0.1 10.181.0.3 -M")
}

// TestRow135: of a Service that has ended, rules and chains go in one call.
func TestRow135(t *testing.T) {
	w := newSyncs(t, 3)
	w.remove("svc1")
	w.Sync()
	if len(w.recorder.inputs) != 1 || strings.Count(w.recorder.inputs[0], "-X KUBE-") != 3 || strings.Count(w.recorder.inputs[0], "-D KUBE-SERVICES") != 1 {
		t.Errorf("inputs %q", w.recorder.inputs)
	}
	w.holds("ns1/svc1:", false)
	w.sees(POD, "172.30.0.42:80", "PASS")
}

// TestRow137: what iptables-restore rejects of a changed Service is found out in
// the same pass; the others are served, and the Service as before.
func TestRow137(t *testing.T) {
	w := newSyncs(t, 3)
	w.recorder.reject = "10.181.0.9"
	w.Add(numbered(0, 1, 2, 3), numbered(1, 9), numbered(2, 2, 3))
	w.mayReject = true
	w.Sync()
	w.sees(POD, "172.30.0.41:80", "10.180.0.1 10.180.0.2 10.180.0.3 -M")
	w.sees(POD, "172.30.0.42:80", "10.181.0.1 10.181.0.2 -M")
	w.sees(POD, "172.30.0.43:80", "10.182.0.2 10.182.0.3 -M")
	if len(w.rejected) != 1 || w.rejected[dataplane.ServiceName{Namespace: "ns1", Name: "svc1"}] == "" {
		t.Errorf("rejected: %v", w.rejected)
	}
}

// TestRow138: whether rules of endpoints carry comments is decided by full
// passes. Those that are there keep theirs until their chain is written for
// another reason.
func TestRow138(t *testing.T) {
	w := newWorld(t, dataplane.IPv4)
	var list []int
	for n := range 998 {
		list = append(list, n+1)
	}
	w.Add(numbered(0, list...), numbered(1, 1))
	w.Sync()
	const commented = "--comment ns1/svc1:p80 -s 10.181.0."
	w.holds(commented+"1 ", true)
	w.Add(numbered(1, 1, 2, 3, 4))
	w.Sync() // of changed Services only
	w.holds(commented+"4 ", true)
	w.Full = true
	w.recorder.inputs = nil
	w.Sync()
	if len(w.recorder.inputs) > 0 && strings.Join(w.recorder.inputs, "") != "" {
		t.Errorf("a full pass rewrites rules for the sake of comments: %.300q", w.recorder.inputs)
	}
	w.Add(numbered(1, 1, 2, 3, 4, 5))
	w.Sync()
	w.holds(commented+"4 ", true)
	w.holds(commented+"5 ", false)
	w.holds("-s 10.181.0.5 ", true)
	w.sees(POD, "172.30.0.42:80", "10.181.0.1 10.181.0.2 10.181.0.3 10.181.0.4 10.181.0.5 -M")
}

// TestRow139: the chains of a Service that has ended go at once, however many
// endpoints there are.
func TestRow139(t *testing.T) {
	w := newWorld(t, dataplane.IPv4)
	var list []int
	for n := range 1100 {
		list = append(list, n+1)
	}
	w.Add(numbered(0, list...), numbered(1, 1))
	w.Sync()
	w.remove("svc1")
	w.Sync()
	w.holds("10.181.0.1", false)
	if n := strings.Count(w.save(), ":KUBE-SEP-"); n != 1100 {
		t.Errorf("%d chains of endpoints, want 1100", n)
	}
}
