package combine

import (
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestHolder: of those that want an address and port the oldest has it whose object is
// used.
func TestHolder(t *testing.T) {
	node := &v1alpha1.NodeProxyRules{Spec: v1alpha1.NodeProxyRulesSpec{FormatVersion: 1}}
	var objects []v1alpha1.ServiceProxyRules
	for name, years := range map[string]int{"oldest.of-an-unknown-format": 9, "misnamed": 8, "old.released": 7, "shop.cart": 2, "shop.web": 1} {
		o := v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *rulesOf("", "", 0)}
		o.Spec.ClusterIPs = []string{map[string]string{"shop.web": "172.30.0.1", "shop.cart": "172.30.0.2"}[name]}
		if o.Spec.ClusterIPs[0] == "" {
			o.Spec.ClusterIPs[0] = "172.30.0.3"
		}
		o.Spec.ExternalIPs = []string{"198.51.100.20"}
		o.Spec.ServiceCreated = metav1.NewTime(time.Date(2026-years, 1, 1, 0, 0, 0, 0, time.UTC))
		switch name {
		case "oldest.of-an-unknown-format":
			o.Spec.FormatVersion = 99
		case "old.released":
			o.Spec.Released = true
		}
		objects = append(objects, o)
	}
	set, err := Whole(node, objects, dataplane.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(objects[0].Spec.Ports[0].Port)
	protocol := objects[0].Spec.Ports[0].Protocol
	if got, found := set.Holders.Of(Claim{Address: netip.MustParseAddr("198.51.100.20"), Port: port, Protocol: protocol}); !found || got.String() != "shop/cart" {
		t.Errorf("%s has it (%t), want shop/cart", got, found)
	}
	if got, found := set.Holders.Of(Claim{Address: netip.MustParseAddr("198.51.100.21"), Port: port, Protocol: protocol}); found {
		t.Errorf("%s has what no Service claims", got)
	}
}
