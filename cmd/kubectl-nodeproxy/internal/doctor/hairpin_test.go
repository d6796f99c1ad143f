package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestHairpin traces connections of pods to their own Service, with real and fake results.
func TestHairpin(t *testing.T) {
	web := types.NamespacedName{Namespace: "shop", Name: "web"}
	for name, c := range map[string]struct {
		trace    func(Trace) Trace
		want     string // findings
		contains string
	}{
		"as nodes do": {trace: func(real Trace) Trace { return real }, contains: "hairpin mode of the bridge port"},
		"not masqueraded": {
			trace: func(real Trace) Trace {
				return func(s *combine.Set, p tracer.Packet) (*tracer.Result, error) {
					r, err := real(s, p)
					masqueraded := 0
					for i := range r.Outcomes {
						if r.Outcomes[i].Masqueraded && r.Outcomes[i].Endpoint.Addr() == p.Source {
							masqueraded++
						}
						r.Outcomes[i].Masqueraded = false
					}
					if masqueraded != 1 {
						t.Errorf("the packet from %s comes back masqueraded in %d of %d outcomes", p.Source, masqueraded, len(r.Outcomes))
					}
					return r, err
				}
			},
			want: "NoHairpin NoHairpin", contains: "trace --node node-1 --from 10.244.1.5 --to 10.96.0.20:80/TCP",
		},
		"rejected": {
			trace: func(Trace) Trace {
				return func(*combine.Set, tracer.Packet) (*tracer.Result, error) {
					return &tracer.Result{Outcomes: []tracer.Outcome{{Fate: tracer.Rejected, Message: "of a reason"}}}, nil
				}
			},
			want: "NoHairpin NoHairpin", contains: "cannot connect: of a reason",
		},
		"cannot be traced": {
			trace: func(Trace) Trace {
				return func(*combine.Set, tracer.Packet) (*tracer.Result, error) { return nil, errors.New("no model") }
			},
			contains: "hairpin: a packet cannot be traced on node-1: no model",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			q := w.question(t)
			q.Service, q.Trace = &web, c.trace(q.Trace)
			r, err := Examine(w.Objects, q)
			if err != nil {
				t.Fatal(err)
			}
			if got := names(r.Findings); got != c.want {
				t.Errorf("found %s, want %s", got, c.want)
			}
			if table := printed(t, r); !strings.Contains(table, c.contains) {
				t.Errorf("the report lacks %q:\n%s", c.contains, table)
			}
		})
	}
}

// TestHairpinBounded: one endpoint of each Service is traced, for a few hundred Services at
// most.
func TestHairpinBounded(t *testing.T) {
	w := newWorld()
	web := w.ServiceRules[1]
	for i := range maxTracedServices {
		more := *web.DeepCopy()
		more.Name, more.Labels = "shop.web", web.Labels
		more.Spec.ClusterIPs = []string{netip.AddrFrom4([4]byte{10, 97, byte(i / 256), byte(i)}).String()}
		more.Spec.ExternalIPs, more.Spec.LoadBalancerIPs = nil, nil
		w.ServiceRules = append(w.ServiceRules, more)
	}
	traced := 0
	q := w.question(t)
	q.Trace = func(*combine.Set, tracer.Packet) (*tracer.Result, error) {
		traced++
		return &tracer.Result{Outcomes: []tracer.Outcome{{Fate: tracer.Delivered}}}, nil
	}
	w.NodeProxy.Status.Inventory = nil
	r, err := Examine(w.Objects, q)
	if err != nil || traced%maxTracedServices != 0 || !strings.Contains(printed(t, r), "hairpin was checked for 300 Services; check the other 2 by name") {
		t.Errorf("%v, %d traced:\n%s", err, traced, printed(t, r))
	}
}

// TestHairpinOfHostNetwork: pods in the host network reach themselves.
func TestHairpinOfHostNetwork(t *testing.T) {
	for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS} {
		w := newWorld()
		for i, address := range []string{"172.20.0.11", "172.20.0.12"} {
			w.slice("web").Endpoints[i].Addresses = []string{address}
			w.node(i).Spec.Settings.Mode, w.node(i).Status.Mode = &mode, mode
		}
		w.render()
		for _, service := range []string{"", "shop/web"} {
			if r := w.examine(t, service); len(r.Findings) > 0 {
				t.Errorf("%s, %q: want no findings:\n%s", mode, service, printed(t, r))
			}
		}
	}
}
