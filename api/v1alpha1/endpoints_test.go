package v1alpha1

import (
	"slices"
	"testing"
)

func TestEndpointsByPort(t *testing.T) {
	spec := &ServiceProxyRulesSpec{
		Ports: []ServicePort{
			{Name: "http", Protocol: ProtocolTCP, Port: 80, Endpoints: []EndpointGroup{{State: EndpointReady, Addresses: []string{"10.0.0.1:8080"}}}},
			{Name: "metrics", Protocol: ProtocolTCP, Port: 90},
		},
		Endpoints: []EndpointGroup{
			{TargetPorts: map[string]int32{"http": 8080, "metrics": 9100, "unknown": 1}, Addresses: []string{"10.0.0.2", "fd00::2"}},
			{TargetPorts: map[string]int32{"metrics": 9101}, State: EndpointTerminating, Addresses: []string{"10.0.0.3"}},
		},
	}
	want := [][]string{
		{"10.0.0.1:8080 Ready", "10.0.0.2:8080 Ready", "[fd00::2]:8080 Ready"},
		{"10.0.0.2:9100 Ready", "[fd00::2]:9100 Ready", "10.0.0.3:9101 Terminating"},
	}
	texts := func(endpoints []PortEndpoints) (out []string) {
		for _, e := range endpoints {
			for text := range e.All() {
				out = append(out, text+" "+string(e.Effective()))
			}
		}
		return out
	}
	for i, endpoints := range spec.EndpointsByPort() {
		if got := texts(endpoints); !slices.Equal(got, want[i]) {
			t.Errorf("port %d: %v, want %v", i, got, want[i])
		}
		if got := texts(spec.EndpointsOf(&spec.Ports[i])); !slices.Equal(got, want[i]) {
			t.Errorf("port %d alone: %v, want %v", i, got, want[i])
		}
	}
	if size := SizeOf(spec); size.Ports != 2 || size.PortEndpoints != 6 || size.Endpoints != 3 {
		t.Errorf("size %+v", size)
	}
}
