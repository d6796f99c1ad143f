package desired

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
		{"newer format", func(s *spec) { s.FormatVersion = 3 }, "UnknownFormat", "spec.formatVersion 3"},
		{"no format", func(s *spec) { s.FormatVersion = 0 }, "UnknownFormat", "spec.formatVersion 0"},
		{"unknown format comes first", func(s *spec) { s.FormatVersion, s.Settings.Mode = 3, new(v1alpha1.ModeIPVS) }, "UnknownFormat", ""},
		{"IPVS, which the node may be able to run", func(s *spec) { s.Settings.Mode = new(v1alpha1.ModeIPVS) }, "", ""},
		{"Audit", func(s *spec) { s.Settings.Enforcement = new(v1alpha1.Audit) }, "", ""},
		{"an invalid value", func(s *spec) { s.Settings.Masquerade.Bit = new(int32(-1)) }, "Invalid",
			"spec.settings.masquerade.bit: Invalid value: -1: must be 0 to 31; correct it in the NodeProxy"},
		{"a value of which the agent knows nothing", func(s *spec) { s.Settings.Mode = new(v1alpha1.ProxyMode("Magic")) }, "Invalid",
			`spec.settings.mode: Unsupported value: "Magic": supported values: "IPTables", "IPVS", "NFTables", "Userspace"; correct it`},
		{"limits are the controller's", func(s *spec) {
			s.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: "InterfaceNamePrefix", InterfaceNamePrefix: new("a12345678901234")}
		}, "Invalid", "spec.settings.detectLocal.interfaceNamePrefix: "},
		{"two invalid values", func(s *spec) {
			s.Settings.Masquerade.Bit, s.Settings.Conntrack.Min = new(int32(32)), new(int32(-5))
		}, "Invalid", "must be 0 to 31 (and 1 more); correct"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			object := &v1alpha1.NodeProxyRules{Spec: spec{FormatVersion: 1, Settings: *v1alpha1.CompleteSettings(nil)}}
			tt.edit(&object.Spec)
			r := accept(object, v1alpha1.FormatVersions())
			if r == nil {
				if tt.reason != "" {
					t.Errorf("accepted, want %s", tt.reason)
				}
				return
			}
			if r.Reason != tt.reason || !strings.Contains(r.Message, tt.field) {
				t.Errorf("got %s: %s, want %s naming %q", r.Reason, r.Message, tt.reason, tt.field)
			}
			if !strings.Contains(r.Message, Meanwhile) {
				t.Errorf("message %q does not state what is meanwhile", r.Message)
			}
		})
	}
}
