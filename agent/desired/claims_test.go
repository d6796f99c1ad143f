package desired

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestClaims(t *testing.T) {
	external := func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"192.0.2.99"} }
	created := func(seconds int) func(*v1alpha1.ServiceProxyRulesSpec) {
		return func(s *v1alpha1.ServiceProxyRulesSpec) {
			s.ServiceCreated = metav1.NewTime(agenttest.Epoch.Add(time.Duration(seconds) * time.Second))
		}
	}
	losers := func(r *rig) string {
		var out []string
		for _, name := range r.kernel.Services() {
			_, short, _ := strings.Cut(name, "/")
			if len(r.kernel.Service("shop", short).Ports[0].Lost) > 0 {
				out = append(out, short)
			}
		}
		return strings.Join(out, " ")
	}
	start := func(objects ...func(r *rig) *v1alpha1.ServiceProxyRules) *rig {
		r := newRig(t)
		r.SetServices(nil)
		r.SetRules(r.Node())
		r.sync()
		for _, o := range objects {
			r.SetService(o(r))
		}
		r.sync()
		return r
	}
	object := func(name string, ip int, edits ...func(*v1alpha1.ServiceProxyRulesSpec)) func(*rig) *v1alpha1.ServiceProxyRules {
		return func(r *rig) *v1alpha1.ServiceProxyRules { return r.Service(name, ip, edits...) }
	}
	expect := func(t *testing.T, r *rig, want string) {
		t.Helper()
		if got := losers(r); got != want {
			t.Errorf("losers: got %q, want %q", got, want)
		}
	}
	t.Run("the older wins, in any order", func(t *testing.T) {
		expect(t, start(object("a", 1, external, created(9)), object("b", 2, external, created(5))), "a")
		expect(t, start(object("b", 2, external, created(5)), object("a", 1, external, created(9))), "a")
	})
	t.Run("no Service takes a cluster IP, however old", func(t *testing.T) {
		thief := func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"10.96.0.2"} }
		expect(t, start(object("a", 1, thief, created(1)), object("b", 2, created(9))), "a")
		expect(t, start(object("b", 2, created(9)), object("a", 1, thief, created(1))), "a")
		r := start(object("a", 1, thief, created(1)), object("b", 2, created(9)))
		r.DeleteService(r.Service("b", 2, created(9), agenttest.Released))
		r.sync()
		expect(t, r, "")
		r.SetService(r.Service("b", 2, created(99)))
		r.sync()
		expect(t, r, "a")
	})
	t.Run("of the same age the lower name wins", func(t *testing.T) {
		expect(t, start(object("b", 2, external), object("a", 1, external)), "b")
	})
	t.Run("one that does not say its age is the youngest", func(t *testing.T) {
		ageless := func(s *v1alpha1.ServiceProxyRulesSpec) { s.ServiceCreated = metav1.Time{} }
		expect(t, start(object("a", 1, external, ageless), object("b", 2, external)), "a")
	})
	t.Run("the loser takes over when the winner is released", func(t *testing.T) {
		r := start(object("a", 1, external), object("b", 2, external))
		r.SetService(r.Service("a", 1, external, agenttest.Released))
		r.expectSync("partial a b")
		expect(t, r, "")
	})
	t.Run("the loser takes over when the winner gives up the address", func(t *testing.T) {
		r := start(object("a", 1, external), object("b", 2, external))
		r.SetService(r.Service("a", 1))
		r.expectSync("partial a b")
		expect(t, r, "")
	})
	t.Run("a live one wins over an older held one", func(t *testing.T) {
		r := start(object("a", 1, created(1)), object("b", 1, created(5)))
		expect(t, r, "b")
		r.DeleteService(r.Service("a", 1))
		r.expectSync("partial a b")
		expect(t, r, "a")
		r.SetService(r.Service("a", 1, created(1)))
		r.expectSync("partial a b")
		expect(t, r, "b")
	})
	t.Run("another port or protocol is another claim", func(t *testing.T) {
		udp := func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Protocol = "UDP" }
		port := func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Port = 81 }
		expect(t, start(object("a", 1, external), object("b", 2, external, udp), object("c", 3, external, port)), "")
	})
	t.Run("a node port", func(t *testing.T) {
		nodePort := func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].NodePort = 30080 }
		r := start(object("a", 1, nodePort), object("b", 2, nodePort))
		if a, b := r.kernel.Service("shop", "a").Ports[0].NodePort, r.kernel.Service("shop", "b").Ports[0].NodePort; a != 30080 || b != 0 {
			t.Errorf("node ports %d and %d", a, b)
		}
	})
	t.Run("data planes know the precedence of what they may see contested", func(t *testing.T) {
		nodePort := func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].NodePort = 30080 }
		r := start(object("a", 1, nodePort, created(3)), object("b", 2, created(4)))
		if p := r.kernel.Service("shop", "a").Precedence; p.Retained || !p.Created.Equal(agenttest.Epoch.Add(3*time.Second)) {
			t.Errorf("%+v", p)
		}
		r.DeleteService(r.Service("b", 2))
		r.expectSync("nothing")
		r.DeleteService(r.Service("a", 1))
		r.expectSync("partial a")
		if p := r.kernel.Service("shop", "a").Precedence; !p.Retained {
			t.Errorf("%+v", p)
		}
		r.SetService(r.Service("a", 1, nodePort, created(3)))
		r.expectSync("partial a")
		r.SetService(r.Service("a", 1, nodePort, created(2)))
		r.expectSync("partial a")
		if p := r.kernel.Service("shop", "a").Precedence; p.Retained || !p.Created.Equal(agenttest.Epoch.Add(2*time.Second)) {
			t.Errorf("%+v", p)
		}
	})
	t.Run("nothing is left of Services that are gone", func(t *testing.T) {
		r := start(object("a", 1, external), object("b", 2, external))
		r.SetService(r.Service("a", 1, agenttest.Released))
		r.SetService(r.Service("b", 2, agenttest.Released))
		if len(r.catalog.claims) != 0 || len(r.catalog.services) != 0 {
			t.Errorf("left: %v, %v", r.catalog.claims, r.catalog.services)
		}
	})
}
