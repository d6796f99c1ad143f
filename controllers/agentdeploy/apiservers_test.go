package agentdeploy_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

func TestAPIServers(t *testing.T) {
	ports := []discoveryv1.EndpointPort{{Name: new("metrics"), Port: new(int32(9))}, {Name: new("https"), Port: new(int32(6443))}}
	slice := func(of discoveryv1.AddressType, ports []discoveryv1.EndpointPort, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{AddressType: of, Ports: ports, Endpoints: endpoints}
	}
	got := agentdeploy.APIServers([]*discoveryv1.EndpointSlice{
		slice(discoveryv1.AddressTypeIPv6, ports, discoveryv1.Endpoint{Addresses: []string{"2001:db8::7"}}),
		slice(discoveryv1.AddressTypeIPv4, ports,
			discoveryv1.Endpoint{Addresses: []string{"192.0.2.11"}},
			discoveryv1.Endpoint{Addresses: []string{"192.0.2.12"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
			discoveryv1.Endpoint{Addresses: []string{"192.0.2.10"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}),
		slice(discoveryv1.AddressTypeIPv4, ports, discoveryv1.Endpoint{Addresses: []string{"192.0.2.11"}}),
		slice(discoveryv1.AddressTypeIPv4, ports[:1], discoveryv1.Endpoint{Addresses: []string{"192.0.2.13"}}),
		slice(discoveryv1.AddressTypeFQDN, ports, discoveryv1.Endpoint{Addresses: []string{"api.example.com"}}),
	})
	want := []string{"https://192.0.2.10:6443", "https://192.0.2.11:6443", "https://[2001:db8::7]:6443"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := agentdeploy.APIServersFile(want[:2]); got != "https://192.0.2.10:6443\nhttps://192.0.2.11:6443\n" {
		t.Errorf("file %q", got)
	}
	if got := agentdeploy.APIServers(nil); len(got) > 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func TestIsServiceAddress(t *testing.T) {
	ips := []string{"10.96.0.1", "fd00:10:96::1"}
	for url, want := range map[string]bool{
		"https://10.96.0.1:443":                true,
		"https://10.96.0.1":                    true,
		"https://[fd00:10:96:0::1]:443":        true,
		"https://10.96.0.2:443":                false,
		"https://kubernetes.default.svc":       false,
		"https://192.0.2.10:6443/?x=10.96.0.1": false,
		"https://[fd00:10:96::1":               false,
	} {
		if got := agentdeploy.IsServiceAddress(url, ips); got != want {
			t.Errorf("%s: %t", url, got)
		}
	}
}
