package v1alpha1

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestValidateSettingsTakes(t *testing.T) {
	for name, s := range map[string]*ProxySettings{
		"nothing":         nil,
		"equal intervals": {Sync: &SyncSettings{MinIntervalMilliseconds: new(int32(10_000)), VerifyIntervalSeconds: new(int32(10))}},
		"a CIDR of each family": {DetectLocal: &DetectLocalSettings{Mode: DetectLocalClusterCIDR,
			ClusterCIDRs: []string{"10.0.0.0/8", "fd00::/56"}}},
		"the longest names": {DetectLocal: &DetectLocalSettings{Mode: DetectLocalBridgeInterface, Interface: new("a12345678901234")}},
	} {
		if errs := ValidateSettings(CompleteSettings(s)); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs.ToAggregate())
		}
	}
}

func TestValidateSettingsNamesAll(t *testing.T) {
	errs := ValidateSettings(CompleteSettings(&ProxySettings{
		Mode: new(ProxyMode("x")), Sync: &SyncSettings{VerifyIntervalSeconds: new(int32(1))}}))
	var fields []string
	for _, err := range errs {
		fields = append(fields, err.Field)
	}
	if got := strings.Join(fields, " "); got != "spec.settings.mode spec.settings.sync.verifyIntervalSeconds" {
		t.Errorf("it names %s", got)
	}
}

func TestValidateSettingsRejects(t *testing.T) {
	detect := func(d DetectLocalSettings) ProxySettings {
		return ProxySettings{DetectLocal: &d}
	}
	ports := func(n NodePortSettings) ProxySettings { return ProxySettings{NodePorts: &n} }
	sync := func(minimum, verify int32) ProxySettings {
		return ProxySettings{Sync: &SyncSettings{MinIntervalMilliseconds: &minimum, VerifyIntervalSeconds: &verify}}
	}
	for name, c := range map[string]struct {
		settings ProxySettings
		field    string // under spec.settings
	}{
		"unknown mode":        {ProxySettings{Mode: new(ProxyMode("Magic"))}, "mode"},
		"unknown fallback":    {ProxySettings{Fallback: new(FallbackMode("IPVS"))}, "fallback"},
		"unknown enforcement": {ProxySettings{Enforcement: new(Enforcement("Maybe"))}, "enforcement"},
		"unknown detector":    {detect(DetectLocalSettings{Mode: "Guess"}), "detectLocal.mode"},
		"malformed CIDR":      {detect(DetectLocalSettings{Mode: "ClusterCIDR", ClusterCIDRs: []string{"10.0.0.0"}}), "detectLocal.clusterCIDRs[0]"},
		"two CIDRs of one family": {detect(DetectLocalSettings{Mode: "ClusterCIDR",
			ClusterCIDRs: []string{"10.0.0.0/8", "172.16.0.0/12"}}), "detectLocal.clusterCIDRs"},
		"every IPv4 address a pod":               {detect(DetectLocalSettings{Mode: "ClusterCIDR", ClusterCIDRs: []string{"0.0.0.0/0"}}), "detectLocal.clusterCIDRs"},
		"every IPv6 address a pod":               {detect(DetectLocalSettings{Mode: "ClusterCIDR", ClusterCIDRs: []string{"10.244.0.0/16", "::/0"}}), "detectLocal.clusterCIDRs"},
		"CIDR missing":                           {detect(DetectLocalSettings{Mode: "ClusterCIDR"}), "detectLocal.clusterCIDRs"},
		"interface missing":                      {detect(DetectLocalSettings{Mode: "BridgeInterface"}), "detectLocal.interface"},
		"prefix missing":                         {detect(DetectLocalSettings{Mode: "InterfaceNamePrefix"}), "detectLocal.interfaceNamePrefix"},
		"field of another mode":                  {detect(DetectLocalSettings{Mode: "None", Interface: new("cni0")}), "detectLocal.interface"},
		"interface name too long":                {detect(DetectLocalSettings{Mode: "BridgeInterface", Interface: new("a123456789012345")}), "detectLocal.interface"},
		"interface name malformed":               {detect(DetectLocalSettings{Mode: "InterfaceNamePrefix", InterfaceNamePrefix: new("a b")}), "detectLocal.interfaceNamePrefix"},
		"interface name that would break a rule": {detect(DetectLocalSettings{Mode: "BridgeInterface", Interface: new("cni0 -j X")}), "detectLocal.interface"},
		"no interface name":                      {detect(DetectLocalSettings{Mode: "BridgeInterface", Interface: new("")}), "detectLocal.interface"},
		"prefix too long":                        {detect(DetectLocalSettings{Mode: "InterfaceNamePrefix", InterfaceNamePrefix: new("a12345678901234")}), "detectLocal.interfaceNamePrefix"},
		"CIDR mapped into IPv6":                  {detect(DetectLocalSettings{Mode: "ClusterCIDR", ClusterCIDRs: []string{"::ffff:10.0.0.0/104"}}), "detectLocal.clusterCIDRs[0]"},
		"malformed node port CIDR":               {ports(NodePortSettings{AddressMode: new(NodePortsCIDRs), CIDRs: []string{"192.0.2.0/24", "here"}}), "nodePorts.cidrs[1]"},
		"unknown address mode":                   {ports(NodePortSettings{AddressMode: new(NodePortAddressMode("Some"))}), "nodePorts.addressMode"},
		"CIDRs missing":                          {ports(NodePortSettings{AddressMode: new(NodePortsCIDRs)}), "nodePorts.cidrs"},
		"CIDRs with All":                         {ports(NodePortSettings{CIDRs: []string{"192.0.2.0/24"}}), "nodePorts.cidrs"},
		"unknown localhost":                      {ports(NodePortSettings{Localhost: new(Toggle("On"))}), "nodePorts.localhost"},
		"bit too high":                           {ProxySettings{Masquerade: &MasqueradeSettings{Bit: new(int32(32))}}, "masquerade.bit"},
		"bit negative":                           {ProxySettings{Masquerade: &MasqueradeSettings{Bit: new(int32(-1))}}, "masquerade.bit"},
		"no scheduler":                           {ProxySettings{IPVS: &IPVSSettings{Scheduler: new("")}}, "ipvs.scheduler"},
		"unknown scheduler":                      {ProxySettings{IPVS: &IPVSSettings{Scheduler: new("robin")}}, "ipvs.scheduler"},
		"exclude CIDR":                           {ProxySettings{IPVS: &IPVSSettings{ExcludeCIDRs: []string{"10.0.0.0/8", "x"}}}, "ipvs.excludeCIDRs[1]"},
		"negative interval":                      {sync(-1, 60), "sync.minIntervalMilliseconds"},
		"verifies too often":                     {sync(250, 4), "sync.verifyIntervalSeconds"},
		"verifies more often than it writes":     {sync(10_001, 10), "sync.verifyIntervalSeconds"},
		"negative conntrack":                     {ProxySettings{Conntrack: &ConntrackSettings{Min: new(int32(-1))}}, "conntrack.min"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := ValidateSettings(CompleteSettings(&c.settings))
			if len(errs) != 1 || errs[0].Field != "spec.settings."+c.field {
				t.Errorf("got %v, want one error of spec.settings.%s", errs, c.field)
			}
		})
	}
}

// TestValidateSettingsChecksEveryField: no toggle may have another value, and no number be negative.
func TestValidateSettingsChecksEveryField(t *testing.T) {
	checked := map[reflect.Type]bool{}
	var check func(parent string, index []int, of reflect.Type)
	check = func(parent string, index []int, of reflect.Type) {
		for f := range of.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			path, index := parent+"."+name, append(slices.Clone(index), f.Index...)
			var wrong any
			switch f.Type {
			case reflect.TypeFor[*Toggle]():
				wrong = new(Toggle("on"))
			case reflect.TypeFor[*int32]():
				wrong = new(int32(-1))
			default:
				if f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct {
					check(path, index, f.Type.Elem())
				}
				continue
			}
			settings := CompleteSettings(nil)
			reflect.ValueOf(settings).Elem().FieldByIndex(index).Set(reflect.ValueOf(wrong))
			errs := ValidateSettings(settings)
			if !slices.ContainsFunc(errs, func(err *field.Error) bool { return err.Field == path }) {
				t.Errorf("%s may be wrong: %v", path, errs)
			}
			checked[f.Type] = true
		}
	}
	check("spec.settings", nil, reflect.TypeFor[ProxySettings]())
	if len(checked) != 2 {
		t.Errorf("only fields of types %v were checked", checked)
	}
}
