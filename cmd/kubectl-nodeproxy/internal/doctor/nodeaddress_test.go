package doctor

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
)

// TestNodeAddresses: an address of a node is a problem if the node needs the port.
func TestNodeAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		port               int32
		external, balanced []string
		want, contains     string
		severity           findings.Severity
	}{
		"load balancers on the nodes":             {port: 80, balanced: []string{"172.20.0.11", "172.20.0.12"}, contains: "2 load-balancer IPs of shop/edge: 172.20.0.11, 172.20.0.12 are addresses of nodes"},
		"the port of SSH":                         {port: 22, balanced: []string{"172.20.0.12"}, want: "NodeAddressTaken", contains: "22/TCP is a port of the node itself", severity: findings.Problem},
		"the node port of another Service":        {port: 30080, balanced: []string{"172.20.0.12"}, want: "NodeAddressTaken", contains: "except those that stay with their owner: 30080/TCP is the node port of shop/web", severity: findings.Problem},
		"an external IP":                          {port: 80, external: []string{"172.20.0.12"}, want: "NodeAddressTaken", contains: "an external IP of the Service", severity: findings.Warning},
		"both":                                    {port: 80, external: []string{"172.20.0.12"}, balanced: []string{"172.20.0.12"}, want: "NodeAddressTaken", contains: "an external IP of the Service", severity: findings.Warning},
		"an external IP with the port of kubelet": {port: 10250, external: []string{"172.20.0.12"}, want: "NodeAddressTaken", contains: "10250/TCP is a port of the node itself", severity: findings.Problem},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			edge := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "edge"},
				Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.30", ClusterIPs: []string{"10.96.0.30"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
					ExternalIPs: c.external, Selector: map[string]string{"app": "edge"},
					Ports: []corev1.ServicePort{{Port: c.port, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}},
				},
			}
			for _, ip := range c.balanced {
				edge.Status.LoadBalancer.Ingress = append(edge.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
			}
			w.addService(edge, "10.244.1.7", "10.244.2.7")
			w.render()
			r := w.examine(t, "")
			if got := names(r.Findings); got != c.want || got != "" && r.Findings[0].Severity != c.severity {
				t.Errorf("found %s, want %s %s:\n%s", got, c.severity, c.want, printed(t, r))
			}
			if table := printed(t, r); !strings.Contains(table, c.contains) {
				t.Errorf("the report lacks %q:\n%s", c.contains, table)
			}
		})
	}
}

// TestPreferred: the report explains why another Service owns an address.
func TestPreferred(t *testing.T) {
	created := func(when metav1.Time) *v1alpha1.ServiceProxyRules {
		return &v1alpha1.ServiceProxyRules{Spec: v1alpha1.ServiceProxyRulesSpec{ServiceCreated: when}}
	}
	web := types.NamespacedName{Namespace: "shop", Name: "web"}
	e := &examination{rules: map[types.NamespacedName]*v1alpha1.ServiceProxyRules{web: created(ago(time.Hour))}}
	for want, over := range map[string]*v1alpha1.ServiceProxyRules{
		"the older Service shop/web":                                                  created(ago(time.Minute)),
		"the Service shop/web (equally old, and first by name)":                       created(ago(time.Hour)),
		"the Service shop/web (because this one has no cluster IP of that IP family)": created(ago(2 * time.Hour)),
	} {
		if got := e.preferred(web, over); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
