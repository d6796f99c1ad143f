package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestWatch: batches of other programs are reported, with their authors, and ours are not.
func TestWatch(t *testing.T) {
	r := newRig(t)
	m, err := nft.OpenMonitor() // in the namespace of this thread
	if err != nil {
		t.Fatal(err)
	}
	r.openMonitor = func() (monitor, error) { return m, nil }
	changes := make(chan dataplane.Change, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	r.set(web())
	r.apply()
	go func() { done <- r.watch(ctx, func(c dataplane.Change) { changes <- c }) }()
	next := func() dataplane.Change {
		t.Helper()
		select {
		case c := <-changes:
			return c
		case <-time.After(10 * time.Second):
			t.Fatal("no change is reported")
			return dataplane.Change{}
		}
	}
	if c := next(); c != (dataplane.Change{}) {
		t.Errorf("initially: %+v", c)
	}
	r.nft(firewalldReload)
	s := web()
	s.Ports[0].Cluster = eps("10.244.9.9:8080")
	r.set(s)
	r.apply()
	r.nft("flush map ip nodeproxy endpoints")
	if c := next(); !c.Sure || !strings.HasPrefix(c.By, "nft, PID ") {
		t.Errorf("after the flush: %+v", c)
	}
	r.nft("add rule ip nodeproxy nat-output counter")
	if c := next(); c.Sure {
		t.Errorf("after an addition: %+v", c)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRepairReadsOnce what a comparison has read, unless something has changed since.
func TestRepairReadsOnce(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	k := &reading{kernel: r.kernel}
	r.kernel = k
	for between, want := range map[string]int{"": 1, "add table ip other": 2, "flush map ip nodeproxy endpoints": 2} {
		k.times = 0
		r.nft("flush map ip nodeproxy service-ips")
		if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{}); err != nil || !d.Drifted {
			t.Fatalf("%+v, %v", d, err)
		}
		if between != "" {
			r.nft(between)
		}
		r.rules.Full = true
		if _, err := r.Apply(t.Context(), &r.rules); err != nil || k.times != want {
			t.Errorf("after %q the table is listed %d times, want %d: %v", between, k.times, want, err)
		}
		r.rules.Full = false
		if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{}); err != nil || d.Count > 0 {
			t.Errorf("after %q and the repair: %+v, %v", between, d, err)
		}
	}
}

// flooded is a monitor for which the kernel drops events.
type flooded struct{}

func (flooded) Run(context.Context, func([]byte)) error { return fmt.Errorf("follow: %w", nft.ErrLost) }

func (flooded) Close() error { return nil }

// TestLostEvents: they may have been of any change, so that another subscription begins, and a comparison is
// due.
func TestLostEvents(t *testing.T) {
	d := New(dataplane.IPv4, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	opened := 0
	d.openMonitor = func() (monitor, error) {
		if opened++; opened == 3 {
			cancel()
		}
		return flooded{}, nil
	}
	d.engine.Begin()
	changes := 0
	d.Watch(ctx, func(c dataplane.Change) {
		if changes++; c != (dataplane.Change{}) {
			t.Errorf("%+v", c)
		}
	})
	if opened != 3 || changes != 3 {
		t.Errorf("%d subscriptions, %d comparisons, want 3", opened, changes)
	}
	if _, known := d.journal.changes(1); known {
		t.Error("the journal claims to be complete")
	}
}

// TestFollow: addresses of interfaces on which NodePorts answer have an effect, others have none.
func TestFollow(t *testing.T) {
	r := newRig(t)
	r.interfaces = dataplane.InterfaceAddresses
	r.rules.Node.Settings.NodePorts.AddressMode = new(v1alpha1.NodePortsCIDRs)
	r.rules.Node.Settings.NodePorts.CIDRs = []string{"192.0.2.0/24"}
	m, err := nft.OpenAddressMonitor(unix.NFPROTO_IPV4) // in the namespace of this thread
	if err != nil {
		t.Fatal(err)
	}
	r.openAddressMonitor = func() (monitor, error) { return m, nil }
	ip := func(words string) {
		t.Helper()
		if out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput(); err != nil { //nolint:gosec // see below
			t.Fatalf("ip %s: %v: %s", words, err, out)
		}
	}
	ip("link set lo up")
	r.set(web())
	if result := r.apply(); len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "NodePorts answer on no IPv4 address") {
		t.Errorf("warnings %q", result.Warnings)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changes, done := make(chan struct{}, 10), make(chan struct{})
	addresses, read := make(chan struct{}), make(chan []netip.Addr) // read in the namespace of this thread
	r.interfaces = func() ([]netip.Addr, error) {
		addresses <- struct{}{}
		return <-read, nil
	}
	go func() {
		defer close(done)
		r.Follow(ctx, func() { changes <- struct{}{} })
	}()
	answer := func() {
		t.Helper()
		select {
		case <-addresses:
			list, err := dataplane.InterfaceAddresses()
			if err != nil {
				t.Error(err)
			}
			read <- list
		case <-time.After(10 * time.Second):
			t.Fatal("the addresses are not read")
		}
	}
	answer() // at the beginning
	ip("address add 198.51.100.9/32 dev lo")
	answer()
	ip("address add 192.0.2.9/32 dev lo")
	answer()
	select {
	case <-changes:
	case <-time.After(10 * time.Second):
		t.Fatal("the new address has no effect")
	}
	if len(changes) > 0 {
		t.Error("an address on which NodePorts do not answer has an effect")
	}
	cancel()
	<-done
	r.interfaces = dataplane.InterfaceAddresses
	r.rules.Recheck = true
	if result := r.apply(); result.Kind != v1alpha1.SyncPartial || len(result.Warnings) > 0 {
		t.Errorf("%+v", result)
	}
	k := key{netip.MustParseAddrPort("192.0.2.9:30080"), v1alpha1.ProtocolTCP}
	if r.actual.destinations[k].destination == nil {
		t.Errorf("%s is not served", k)
	}
	r.rules.Recheck = false
}
