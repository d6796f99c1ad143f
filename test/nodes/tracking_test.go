package nodes

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestConnectionTracking changes settings of connection tracking on a node that
// is a network namespace: what belongs to it is written and rules follow, what
// belongs to the machine is reported, and the machine is left alone.
func TestConnectionTracking(t *testing.T) {
	t.Parallel()
	e := start(t)
	machine := func() map[string]string {
		values := map[string]string{}
		for _, name := range []string{"max", "buckets", "tcp_timeout_established", "tcp_timeout_close_wait", "tcp_be_liberal"} {
			text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
			if err != nil {
				t.Fatal(err)
			}
			values[name] = string(text)
		}
		return values
	}
	before := machine()
	e.startAgent()
	e.patch(`{"spec":{"settings":{"sync":{"verifyIntervalSeconds":5},"conntrack":{"tcpCloseWaitTimeoutSeconds":3601}}}}`)
	e.programmed()
	e.until(func(context.Context) error { return e.sysctl("tcp_timeout_established", "86400") })
	e.until(func(context.Context) error { return e.sysctl("tcp_timeout_close_wait", "3601") })
	e.until(func(context.Context) error { return e.dropsInvalid(true) })

	e.patch(`{"spec":{"settings":{"conntrack":{"tcpBeLiberal":"Enabled"}}}}`)
	e.until(func(context.Context) error { return e.sysctl("tcp_be_liberal", "1") })
	e.until(func(context.Context) error { return e.dropsInvalid(false) })
	e.until(e.settled) // which includes the statistics
	e.trackingReported()

	// Disabled leaves it as it is, and rules follow changes by others.
	e.patch(`{"spec":{"settings":{"conntrack":{"tcpBeLiberal":"Disabled"}}}}`)
	e.until(e.settled)
	if err := e.sysctl("tcp_be_liberal", "1"); err != nil {
		t.Error(err)
	}
	if _, err := e.node.Exec(t.Context(), "sysctl", "-w", "net.netfilter.nf_conntrack_tcp_be_liberal=0"); err != nil {
		t.Fatal(err)
	}
	e.until(func(context.Context) error { return e.dropsInvalid(true) })

	// The size of the table is the machine's.
	e.patch(`{"spec":{"settings":{"conntrack":{"maxPerCore":1000003}}}}`)
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed,
		"Restrictions: net.netfilter.nf_conntrack_max is "+strings.TrimSpace(before["max"])+", not ")
	e.patch(`{"spec":{"settings":{"conntrack":{"maxPerCore":0}}}}`)
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "The desired state is programmed")
	e.until(e.settled)
	if d := e.own().Status.Drift; d != nil && d.Repairs > 0 {
		t.Errorf("rules that follow a sysctl count as repaired: %+v", d)
	}
	for name, value := range machine() {
		if value != before[name] {
			t.Errorf("nf_conntrack_%s of the machine was %s and is %s", name, before[name], value)
		}
	}
}

func (e *env) own() *v1alpha1.NodeProxyRules {
	e.Helper()
	own := &v1alpha1.NodeProxyRules{}
	if err := e.nodeproxy.Cluster.Client().Get(e.Context(), client.ObjectKey{Name: e.node.Name()}, own); err != nil {
		e.Fatal(err)
	}
	return own
}

// settled is nil once the newest settings are applied.
func (e *env) settled(ctx context.Context) error {
	proxy := &v1alpha1.NodeProxy{}
	if err := e.nodeproxy.Cluster.Client().Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, proxy); err != nil {
		return err
	}
	if own := e.own(); proxy.Status.ObservedGeneration != proxy.Generation || own.Status.SettingsRevision != own.Spec.SettingsRevision {
		return fmt.Errorf("generation %d of %d, revision %s of %s", proxy.Status.ObservedGeneration, proxy.Generation, own.Status.SettingsRevision, own.Spec.SettingsRevision)
	}
	return nil
}

// sysctl is nil if one of the node's has a value.
func (e *env) sysctl(name, want string) error {
	got, err := e.node.Exec(e.Context(), "sysctl", "-n", "net.netfilter.nf_conntrack_"+name)
	if err == nil && strings.TrimSpace(got) != want {
		err = fmt.Errorf("nf_conntrack_%s is %s, want %s", name, strings.TrimSpace(got), want)
	}
	return err
}

// dropsInvalid is nil if the node's rules drop INVALID packets, or not.
func (e *env) dropsInvalid(want bool) error {
	rules, err := e.node.Exec(e.Context(), "iptables-save", "-t", "filter")
	if err == nil && strings.Contains(rules, "--ctstate INVALID") != want {
		err = fmt.Errorf("INVALID packets are dropped: %v, want %v", !want, want)
	}
	return err
}

// trackingReported fails unless the statistics of the node are about what the
// program conntrack reports.
func (e *env) trackingReported() {
	e.Helper()
	got := e.own().Status.Conntrack
	text, err := e.node.Exec(e.Context(), "conntrack", "-C")
	if err != nil {
		e.Fatal(err)
	}
	entries, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		e.Fatal(err)
	}
	if got == nil || got.Entries == 0 || got.Entries > 10*entries+100 || got.Buckets == 0 {
		e.Fatalf("statistics %+v; there are %d entries", got, entries)
	}
	if err := e.sysctl("max", strconv.FormatInt(got.Max, 10)); err != nil {
		e.Error(err)
	}
}
