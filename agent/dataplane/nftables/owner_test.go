package nftables

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// own has the rig begin with a Dataplane that owns its table. It reports false if the kernel cannot.
func (r *rig) own() bool {
	r.Helper()
	r.restart()
	r.shared = false
	if err := r.connect(); err != nil {
		r.Fatal(err)
	}
	if !r.owns {
		r.Log("the kernel has no table flags owner and persist")
	}
	return r.owns
}

// firewalldReload is one batch, as firewalld makes it to replace its rules.
const firewalldReload = "add table inet firewalld; delete table inet firewalld; add table inet firewalld; " +
	"add chain inet firewalld filter_FORWARD { type filter hook forward priority filter + 10; policy accept; }"

// attacks are what another program may do to the table.
var attacks = map[string]string{
	"an element deleted":     "delete element ip nodeproxy endpoints { 172.16.0.7 . tcp . 80 . 0x00000000 }",
	"a Service deleted":      "delete element ip nodeproxy service-ips { 172.16.0.7 . tcp . 80 }",
	"a chain flushed":        "flush chain ip nodeproxy nat-prerouting",
	"a set flushed":          "flush map ip nodeproxy endpoints",
	"an element added":       "add element ip nodeproxy service-ips { 192.0.2.99 . tcp . 80 : drop }",
	"a rule added":           "insert rule ip nodeproxy filter-forward drop",
	"the table deleted":      "delete table ip nodeproxy",
	"all tables flushed":     "flush ruleset",
	"a firewall reloaded":    "flush ruleset; " + firewalldReload,
	"a base chain added":     "add chain ip nodeproxy mine { type filter hook forward priority 0; policy drop; }",
	"a chain and a set":      "add chain ip nodeproxy mine; add set ip nodeproxy my { type ipv4_addr; }; add rule ip nodeproxy mine ip daddr @my drop",
	"our base chain deleted": "delete chain ip nodeproxy nat-output",
	"the table made dormant": "add table ip nodeproxy { flags dormant; }",
	"a policy changed":       "add chain ip nodeproxy filter-forward { policy drop; }",
	"a catch-all element":    "add element ip nodeproxy service-ips { * : drop }",
	"an anonymous set":       "add chain ip nodeproxy mine; add rule ip nodeproxy mine ip saddr { 192.0.2.7, 192.0.2.8 } drop",
	"a map to a chain":       "add chain ip nodeproxy mine; add map ip nodeproxy my { type ipv4_addr : verdict; elements = { 192.0.2.7 : goto mine }; }",
}

// TestOwned: other programs cannot change the table, and a restarted agent takes it over.
func TestOwned(t *testing.T) {
	r := newRig(t)
	if !r.own() {
		r.Skip("the kernel has no table flags owner and persist")
	}
	for n := range 20 {
		r.set(numbered(n, 3))
	}
	r.apply()
	for what, command := range attacks {
		out, err := exec.Command("nft", command).CombinedOutput() //nolint:gosec // the list above
		flush := strings.HasPrefix(command, "flush ruleset")      // which passes over tables of others
		if flush && err != nil || !flush && (err == nil || !strings.Contains(string(out), "Operation not permitted")) {
			t.Errorf("%s: %v: %s", what, err, out)
		}
		if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Audit: true}); err != nil || d.Count > 0 {
			t.Errorf("%s has an effect: %q, %v", what, d.Examples, err)
		}
	}
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || !strings.Contains(string(out), "nodeproxy") {
		t.Errorf("nft cannot list the table: %v: %s", err, out)
	}

	former := r.Dataplane
	if !r.own() {
		t.Fatal("another socket cannot own tables")
	}
	if _, err := r.Apply(t.Context(), &r.rules); !errors.Is(err, unix.EPERM) {
		t.Errorf("while another agent owns the table: %v", err)
	}
	if err := former.Close(); err != nil { // as the end of the agent does
		t.Fatal(err)
	}
	before, err := r.conn.Generation()
	if err != nil {
		t.Fatal(err)
	}
	r.rules.Full = true
	r.apply()
	if after, err := r.conn.Generation(); err != nil || after != before+1 {
		t.Errorf("a restart takes %d batches, not one that takes over the table, %v", after-before, err)
	}
	r.set(numbered(3, 4))
	r.apply()
	if err := r.Dataplane.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil {
		t.Error(err)
	}
	r.rules.Full = true
	r.apply()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.restart() // which shares it, as an older version does
	r.apply()
}

// TestTakeOverSharedTable: a table that was made without an owner gets one.
func TestTakeOverSharedTable(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	if r.own() {
		r.apply()
		if _, of, err := r.conn.HasTable(r.config.table()); err != nil || of.Port != r.kernel.Port() {
			t.Errorf("the table is owned by %+v, %v", of, err)
		}
	}
}

// typicalRepair is how long a repair takes on an idle machine, from the event on.
const typicalRepair = 150 * time.Millisecond

// TestTimeOfRepairs: from the event to the repair, where the kernel cannot protect the table.
func TestTimeOfRepairs(t *testing.T) {
	r, _, _ := filled(t, 5000, 10)
	m, err := nft.OpenMonitor() // in the namespace of this thread
	if err != nil {
		t.Fatal(err)
	}
	r.openMonitor = func() (monitor, error) { return m, nil }
	changes := make(chan time.Time, 100_000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- r.watch(ctx, func(dataplane.Change) {
			select {
			case changes <- time.Now():
			default:
			}
		})
	}()
	<-changes // at the beginning
	if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Suspected: true}); err != nil || d.Count > 0 {
		t.Fatalf("%+v, %v", d, err)
	}
	for what, command := range attacks {
		for len(changes) > 0 {
			<-changes
		}
		r.nft(command)
		var at time.Time
		select {
		case at = <-changes:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no event", what)
		}
		if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Suspected: true}); err != nil || !d.Drifted {
			t.Fatalf("%s: %+v, %v", what, d, err)
		}
		r.rules.Full, r.rules.Repair = true, true
		if _, err := r.Apply(t.Context(), &r.rules); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		took := time.Since(at)
		t.Logf("%s: repaired after %v", what, took)
		if took > 10*typicalRepair { // units run beside others
			t.Errorf("%s: repaired after %v", what, took)
		}
		r.rules.Full, r.rules.Repair = false, false
		if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{}); err != nil || d.Count > 0 {
			t.Errorf("%s: %d differences are left: %q, %v", what, d.Count, d.Examples, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
