package nftables

import (
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/kubeproxy"
)

// makeFormer makes tables as a kube-proxy that is gone has left them, and one that is not its.
func (r *rig) makeFormer() {
	r.Helper()
	for _, name := range []string{kubeproxy.TableName, "other"} {
		r.nft("add table ip " + name)
		r.nft("add chain ip " + name + " nat-prerouting { type nat hook prerouting priority dstnat; }")
		r.nft("add rule ip " + name + " nat-prerouting ip daddr 10.96.0.9 drop")
	}
}

func (r *rig) has(name string) bool {
	r.Helper()
	found, _, err := r.conn.HasTable(tableOf(dataplane.IPv4, name))
	if err != nil {
		r.Fatal(err)
	}
	return found
}

// TestFormerTable: it is removed once all Services are programmed, and never before or in an audit.
func TestFormerTable(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.makeFormer()
	if _, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Audit: true}); err != nil {
		t.Fatal(err)
	}
	if err := r.Supported(t.Context(), &r.rules); err != nil {
		t.Fatal(err)
	}
	r.rules.Prune = false
	if r.apply(); !r.has(kubeproxy.TableName) {
		t.Error("it is removed although the Services are not confirmed")
	}
	r.rules.Full, r.rules.Prune = true, true
	rejected := numbered(7, 1)
	for i := range maxServiceElements { // more than the kernel is asked for
		rejected.ExternalIPs = append(rejected.ExternalIPs, netip.AddrFrom4([4]byte{100, byte(64 + i>>16), byte(i >> 8), byte(i)})) //nolint:gosec // few
	}
	r.set(rejected)
	if result := r.apply(); len(result.Rejected) != 1 || !r.has(kubeproxy.TableName) {
		t.Errorf("it is removed although it may serve a rejected Service: %v", result.Rejected)
	}
	delete(r.rules.Services, rejected.Name)
	r.rules.Dirty[rejected.Name], r.rules.Full = struct{}{}, true
	if r.apply(); r.has(kubeproxy.TableName) || !r.has("other") || !r.has(TableName) {
		t.Errorf("after a full pass: %v, the table of another program: %v, ours: %v", r.has(kubeproxy.TableName), r.has("other"), r.has(TableName))
	}
	r.nft("add table ip " + kubeproxy.TableName)
	if r.apply(); !r.has(kubeproxy.TableName) {
		t.Error("a partial Apply removes it: it may be that of a kube-proxy that has just started")
	}
	if err := r.Dataplane.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil || !r.has(kubeproxy.TableName) || r.has(TableName) {
		t.Errorf("cleanup: %v, left: %v, ours: %v", err, r.has(kubeproxy.TableName), r.has(TableName))
	}
	pending, err := r.CleanupMode(t.Context(), &r.rules)
	if pending != "" || err != nil || r.has(kubeproxy.TableName) || !r.has("other") {
		t.Errorf("cleanup for another mode: %q, %v, left: %v, the table of another program: %v", pending, err, r.has(kubeproxy.TableName), r.has("other"))
	}
}

// TestFormerTableIsOwned: a table that a socket owns is not left behind, and cannot be deleted.
func TestFormerTableIsOwned(t *testing.T) {
	r := newRig(t)
	owner, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = owner.Close() }()
	var b nft.Batch
	b.AddTable(tableOf(dataplane.IPv4, kubeproxy.TableName), "", true)
	if err := owner.Commit(&b, 0); err != nil {
		t.Fatal(err)
	}
	r.set(web())
	if result := r.apply(); len(result.Warnings) != 1 {
		t.Errorf("warnings: %q", result.Warnings)
	}
}

// TestRelinquish: our table stays until another proxy serves.
func TestRelinquish(t *testing.T) {
	r := newRig(t)
	r.makeFormer()
	for range 2 {
		expect := func(when string, serves bool, want string) {
			t.Helper()
			if remain, err := r.Relinquish(t.Context(), serves); remain != want || err != nil {
				t.Errorf("%s: %q, %v", when, remain, err)
			}
			if r.has(TableName) != (want != "") || !r.has("other") {
				t.Errorf("%s: ours: %v, another program's: %v", when, r.has(TableName), r.has("other"))
			}
		}
		expect("nothing was written", false, "")
		r.set(web())
		r.rules.Full = true
		r.apply()
		r.restart()
		expect("the other proxy does not serve", false, "nf_tables table ip "+TableName)
		expect("it serves", true, "")
		expect("nothing is left", true, "")
	}
}
