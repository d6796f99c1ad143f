package agent

import (
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestAccept(t *testing.T) {
	type spec = v1alpha1.NodeProxyRulesSpec
	tests := []struct {
		name   string
		edit   func(*spec)
		reason string // empty: accepted
		field  string
	}{
		{"complete defaults", func(*spec) {}, "", ""},
		{"nothing but a format: absent fields have defaults", func(s *spec) { s.Settings = v1alpha1.ProxySettings{} }, "", ""},
		{"newer format", func(s *spec) { s.FormatVersion = 2 }, "UnknownFormat", "spec.formatVersion 2"},
		{"no format", func(s *spec) { s.FormatVersion = 0 }, "UnknownFormat", "spec.formatVersion 0"},
		{"unknown format comes first", func(s *spec) { s.FormatVersion, s.Settings.Mode = 2, new(v1alpha1.ModeIPVS) }, "UnknownFormat", ""},
		{"IPVS", func(s *spec) { s.Settings.Mode = new(v1alpha1.ModeIPVS) }, "Unsupported", "spec.settings.mode: IPVS"},
		{"Audit", func(s *spec) { s.Settings.Enforcement = new(v1alpha1.Audit) }, "Unsupported", "spec.settings.enforcement: Audit"},
		{"mode", func(s *spec) { s.Settings.Mode = new(v1alpha1.ProxyMode("Magic")) }, "Invalid", "spec.settings.mode"},
		{"enforcement", func(s *spec) { s.Settings.Enforcement = new(v1alpha1.Enforcement("")) }, "Invalid", "spec.settings.enforcement"},
		{"fallback", func(s *spec) { s.Settings.Fallback = new(v1alpha1.FallbackMode("IPVS")) }, "Invalid", "spec.settings.fallback"},
		{"toggle", func(s *spec) { s.Settings.Masquerade.All = new(v1alpha1.Toggle("on")) }, "Invalid", "spec.settings.masquerade.all"},
		{"bit", func(s *spec) { s.Settings.Masquerade.Bit = new(int32(-1)) }, "Invalid", "spec.settings.masquerade.bit"},
		{"cluster CIDR missing", func(s *spec) { s.Settings.DetectLocal.Mode = v1alpha1.DetectLocalClusterCIDR }, "Invalid", "spec.settings.detectLocal.clusterCIDRs"},
		{"cluster CIDR", func(s *spec) {
			s.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: "ClusterCIDR", ClusterCIDRs: []string{"10.0.0.0/33"}}
		}, "Invalid", "spec.settings.detectLocal.clusterCIDRs[0]"},
		{"two cluster CIDRs of a family", func(s *spec) {
			s.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: "ClusterCIDR", ClusterCIDRs: []string{"10.0.0.0/8", "10.244.0.0/16"}}
		}, "Invalid", "more than one of family IPv4"},
		{"cluster CIDRs of both families", func(s *spec) {
			s.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: "ClusterCIDR", ClusterCIDRs: []string{"10.0.0.0/8", "fd00::/56"}}
		}, "", ""},
		{"bridge", func(s *spec) {
			s.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: "BridgeInterface"}
		}, "Invalid", "spec.settings.detectLocal.interface"},
		{"interface that would break a rule", func(s *spec) {
			s.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: "InterfaceNamePrefix", InterfaceNamePrefix: new("veth -j X")}
		}, "Invalid", "spec.settings.detectLocal.interfaceNamePrefix"},
		{"detect mode", func(s *spec) { s.Settings.DetectLocal.Mode = "Guess" }, "Invalid", "spec.settings.detectLocal.mode"},
		{"address mode", func(s *spec) { s.Settings.NodePorts.AddressMode = new(v1alpha1.NodePortAddressMode("Some")) }, "Invalid", "spec.settings.nodePorts.addressMode"},
		{"node port CIDRs missing", func(s *spec) { s.Settings.NodePorts.AddressMode = new(v1alpha1.NodePortsCIDRs) }, "Invalid", "spec.settings.nodePorts.cidrs"},
		{"node port CIDR", func(s *spec) { s.Settings.NodePorts.CIDRs = []string{"here"} }, "Invalid", "spec.settings.nodePorts.cidrs[0]"},
		{"verify below 5 s", func(s *spec) { s.Settings.Sync.VerifyIntervalSeconds = new(int32(4)) }, "Invalid", "spec.settings.sync.verifyIntervalSeconds"},
		{"verify below the minimum", func(s *spec) { s.Settings.Sync.MinIntervalMilliseconds = new(int32(61_000)) }, "Invalid", "spec.settings.sync.verifyIntervalSeconds"},
		{"negative", func(s *spec) { s.Settings.Conntrack.Min = new(int32(-5)) }, "Invalid", "spec.settings.conntrack.min"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			object := &v1alpha1.NodeProxyRules{Spec: spec{FormatVersion: 1, Settings: *v1alpha1.CompleteSettings(nil)}}
			tt.edit(&object.Spec)
			r := accept(object)
			if r == nil {
				if tt.reason != "" {
					t.Errorf("accepted, want %s", tt.reason)
				}
				return
			}
			if r.reason != tt.reason || !strings.Contains(r.message, tt.field) {
				t.Errorf("got %s: %s, want %s naming %q", r.reason, r.message, tt.reason, tt.field)
			}
			if !strings.Contains(r.message, meanwhile) {
				t.Errorf("message %q does not say what is meanwhile", r.message)
			}
		})
	}
}
