package iptablesmodel

import (
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// FuzzRestore reads text as the input of iptables-restore. What the model accepts it
// must accept again as it prints it, with the same result, and packets must come to
// an end in it.
func FuzzRestore(f *testing.F) {
	f.Add("*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.1:8080\n-A PREROUTING -j KUBE-SVC-A\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, input string) {
		k := NewKernel()
		if k.Restore(input) != nil {
			return
		}
		again := NewKernel()
		if err := again.Restore(k.Save("nat") + k.Save("filter")); err != nil {
			t.Fatalf("what it prints is not accepted: %v", err)
		}
		for _, table := range []string{"nat", "filter"} {
			if k.Save(table) != again.Save(table) {
				t.Errorf("printed, accepted and printed again:\n%s\n%s", k.Save(table), again.Save(table))
			}
		}
		outcomes, err := k.Trace(kernelmodel.Packet{Protocol: "tcp", In: "eth0", Source: netip.MustParseAddr("203.0.113.2"), Destination: netip.MustParseAddrPort("10.96.0.10:80")})
		if err != nil {
			return
		}
		sum := 0.0
		for _, o := range outcomes {
			sum += o.Share
		}
		if sum < 1-1e-6 || sum > 1+1e-6 {
			t.Errorf("the outcomes have a share of %f together", sum)
		}
	})
}
