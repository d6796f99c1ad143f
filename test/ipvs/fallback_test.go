package ipvs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

// modprobeSetting is the kernel's setting of the program that loads modules.
const modprobeSetting = "/proc/sys/kernel/modprobe"

// TestWithoutIPVS takes the module ip_vs away, and gives it back while nodes run
// another mode instead.
func TestWithoutIPVS(tt *testing.T) {
	t := use(tt)
	if !uml.Inside() {
		t.Skip("left out: this machine's kernel keeps its modules")
	}
	node := t.cluster.Node(0)
	t.set(`"mode":"IPTables"`)
	for _, each := range t.cluster.Nodes() {
		t.noTraces(each, ipvsTraces)
	}
	t.rejectModules("ip_vs", "IPVS")
	// Agents that have seen the module find it again under another number.
	t.exec(node, uml.LoaderOfModules(), "-r", "ip_vs_sh", "ip_vs_lc", "ip_vs_rr", "xt_ipvs", "ip_vs")

	// None: the node keeps what it has and reports it.
	before, err := state(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.change(`"mode":"IPVS"`)
	t.condition(node, v1alpha1.ConditionAccepted, "False", v1alpha1.ReasonUnsupported, "spec.settings.mode")
	t.answers(t.visitors[0].Place, "tcp", at(plainIP, 80), "web-1", "web-2", "web-3")
	if now, err := state(t.Context(), node); err != nil || difference(before, now) != "" {
		t.Errorf("without a fallback the node has changed: %s, %v", difference(before, now), err)
	}

	// IPTables: it runs that, and reports it.
	t.change(`"fallback":"IPTables"`)
	t.condition(node, v1alpha1.ConditionModeFallback, "True", v1alpha1.ReasonKernelLacksMode, "IPVS")
	t.condition(node, v1alpha1.ConditionAccepted, "True", v1alpha1.ReasonAccepted, "")
	t.until(t.programmed)
	t.mode(v1alpha1.ModeIPTables)

	// The module comes: the node takes the mode up.
	t.allowModules()
	t.mode(v1alpha1.ModeIPVS)
	t.condition(node, v1alpha1.ConditionModeFallback, "False", v1alpha1.ReasonNoFallback, "")
	t.until(t.programmed)
	t.noTraces(node, iptablesTraces)
	t.answers(t.visitors[0].Place, "tcp", at(plainIP, 80), "web-1", "web-2", "web-3")
}

// TestWithoutScheduler asks for a scheduler that the kernel has not.
func TestWithoutScheduler(tt *testing.T) {
	t := use(tt)
	node := t.cluster.Node(0)
	t.set(`"fallback":"IPTables"`)
	t.change(`"ipvs":{"scheduler":"twos"}`)
	t.condition(node, v1alpha1.ConditionModeFallback, "True", v1alpha1.ReasonKernelLacksMode, "twos")
	t.mode(v1alpha1.ModeIPTables)
	t.answers(t.visitors[0].Place, "tcp", at(plainIP, 80), "web-1", "web-2", "web-3")
	t.change(`"ipvs":null`)
	t.mode(v1alpha1.ModeIPVS)
	t.condition(node, v1alpha1.ConditionModeFallback, "False", v1alpha1.ReasonNoFallback, "")
}

// mode waits until all nodes run a mode.
func (t test) mode(want v1alpha1.ProxyMode) {
	t.Helper()
	for _, node := range t.cluster.Nodes() {
		t.status(node, func(s *v1alpha1.NodeProxyRulesStatus) error {
			if s.Mode != want {
				return fmt.Errorf("it runs %s, want %s", s.Mode, want)
			}
			return nil
		})
	}
}

// rejection names a file: while it is there, modules that match are not loaded.
func (t test) rejection() string { return filepath.Join(t.cluster.Dir(), "rejected-modules") }

// rejectModules has the kernel's loader reject modules whose names hold one of some
// words.
func (t test) rejectModules(words ...string) {
	t.Helper()
	script := fmt.Sprintf("#!/bin/sh\nif [ -e %[1]s ] && echo \"$*\" | grep -qFf %[1]s; then exit 1; fi\nexec %[2]s \"$@\"\n", t.rejection(), uml.LoaderOfModules())
	loader := filepath.Join(t.cluster.Dir(), "loader")
	if err := os.WriteFile(loader, []byte(script), 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	list := ""
	for _, word := range words {
		list += word + "\n"
	}
	if err := os.WriteFile(t.rejection(), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(modprobeSetting, []byte(loader), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(modprobeSetting, []byte(uml.LoaderOfModules()), 0); err != nil {
			t.Error(err)
		}
	})
}

// allowModules undoes rejectModules.
func (t test) allowModules() {
	t.Helper()
	if err := os.Remove(t.rejection()); err != nil {
		t.Fatal(err)
	}
}

// TestUnmanagedVirtualServers leaves those of others alone; a Service that needs the
// place of one is rejected until it goes.
func TestUnmanagedVirtualServers(tt *testing.T) {
	t := use(tt)
	node := t.cluster.Node(0)
	ip, otherIP := t.newIP(), t.newIP()
	unmanaged, needed := "192.0.2.50:80", at(ip, 80)
	for _, address := range []string{unmanaged, needed} {
		t.exec(node, "ipvsadm", "-A", "-t", address, "-s", "wrr")
		t.exec(node, "ipvsadm", "-a", "-t", address, "-r", "192.0.2.60:80", "-m", "-w", "3")
		t.Cleanup(func() {
			_, _ = node.Exec(t.ctx, "ipvsadm", "-D", "-t", address) // it may be gone
		})
	}
	untouched := func(ctx context.Context, address string) error {
		s, err := virtual(ctx, node, "tcp", address)
		if err == nil && (s.rule != "-s wrr" || len(s.reals) != 1 || s.reals["192.0.2.60:80"].weight != 3) {
			err = fmt.Errorf("the unmanaged virtual server %s is %+v", address, *s)
		}
		return err
	}
	t.create(service("needing", "web", func(s *corev1.ServiceSpec) { s.ClusterIP = ip }))
	t.status(node, func(s *v1alpha1.NodeProxyRulesStatus) error {
		if err := hasCondition(s, v1alpha1.ConditionProgrammed, "True", v1alpha1.ReasonSomeServicesRejected, "default/needing"); err != nil {
			return err
		}
		if s.Rejected == nil || s.Rejected.Count != 1 {
			return fmt.Errorf("rejected are %+v", s.Rejected)
		}
		return nil
	})
	for _, address := range []string{unmanaged, needed} {
		if err := untouched(t.Context(), address); err != nil {
			t.Error(err)
		}
	}
	// Others go on.
	t.create(service("beside", "web", func(s *corev1.ServiceSpec) { s.ClusterIP = otherIP }))
	t.answers(t.visitors[0].Place, "tcp", at(otherIP, 80), "web-1", "web-2", "web-3")
	t.answers(t.visitors[1].Place, "tcp", needed, "web-1", "web-2", "web-3") // on the other node

	t.exec(node, "ipvsadm", "-D", "-t", needed)
	t.answers(t.visitors[0].Place, "tcp", needed, "web-1", "web-2", "web-3")
	t.until(t.programmed)
	if err := untouched(t.Context(), unmanaged); err != nil {
		t.Error(err)
	}
}
