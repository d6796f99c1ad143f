package doctor

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

func TestHealthy(t *testing.T) {
	for _, service := range []string{"", "shop/web", "kube-system/kube-dns"} {
		r := newWorld().examine(t, service)
		if len(r.Findings) > 0 || len(r.SkippedChecks) > 0 {
			t.Errorf("%q: want no findings:\n%s", service, printed(t, r))
		}
		if !strings.Contains(printed(t, r), "no problems found\n") {
			t.Errorf("%q: the report lacks the line without problems:\n%s", service, printed(t, r))
		}
	}
}

// planted is a fault in a healthy cluster.
type planted struct {
	service  string // to ask for; empty: all
	plant    func(w *world)
	want     string // the reasons of findings
	contains string // a part of the printed report
}

// TestFaults plants faults in a healthy cluster.
func TestFaults(t *testing.T) {
	for _, faults := range []map[string]planted{
		controllerFaults(), dnsFaults(), endpointFaults(), renderingFaults(), nodeFaults(), trafficPolicyFaults(), policyFaults(), exposureFaults(),
	} {
		for name, c := range faults {
			t.Run(name, c.test)
		}
	}
}

func (c planted) test(t *testing.T) {
	w := newWorld()
	c.plant(w)
	r := w.examine(t, c.service)
	if got := names(r.Findings); got != c.want {
		t.Errorf("found %s, want %s:\n%s", got, c.want, printed(t, r))
	}
	if table := printed(t, r); !strings.Contains(table, c.contains) {
		t.Errorf("the report lacks %q:\n%s", c.contains, table)
	}
	for _, f := range withConsequences(r.Findings) {
		if f.Message == "" || f.Remedy == "" || f.Severity == "" || f.Check == "" {
			t.Errorf("a finding is not complete: %+v", f)
		}
	}
}

// TestClocks: a wrong local clock is a note, not a finding.
func TestClocks(t *testing.T) {
	for ahead, want := range map[time.Duration]string{
		5 * time.Minute:   "the clock of this machine is 5m ahead of the API server's",
		-5 * time.Minute:  "the clock of this machine is 5m behind the API server's",
		29 * time.Second:  "",
		-29 * time.Second: "",
	} {
		w := newWorld()
		w.Ahead = ahead
		r := w.examine(t, "")
		table := printed(t, r)
		if len(r.Findings) > 0 || !strings.Contains(table, want) || want == "" && strings.Contains(table, "clock") {
			t.Errorf("%s ahead: want no finding, and %q:\n%s", ahead, want, table)
		}
	}
}

// TestServed: notes show where the examined Service has endpoints.
func TestServed(t *testing.T) {
	w := newWorld()
	w.slice("web").Endpoints[1].Conditions.Ready = new(false)
	w.service("web").Status.LoadBalancer.Ingress = nil
	w.render()
	table := printed(t, w.examine(t, "shop/web"))
	for _, want := range []string{"1 of 2 endpoints usable (1 on node-1)", "shop/web is of type LoadBalancer and has no address yet"} {
		if !strings.Contains(table, want) {
			t.Errorf("the report lacks %q:\n%s", want, table)
		}
	}
}

// TestTransient: what the second examination does not confirm is no finding.
func TestTransient(t *testing.T) {
	for name, second := range map[string]func(w *world){
		"the rules are written in between": func(w *world) { w.render() },
		"they are behind again because of another change": func(w *world) {
			w.render()
			w.ServiceRules[1].ResourceVersion = "8"
			w.service("web").Spec.Ports[0].Port = 82
		},
		"the Service is deleted, and so are its rules": func(w *world) {
			w.Services = w.Services[:1]
			w.Pods = w.Pods[:2]
			w.EndpointSlices = w.EndpointSlices[:1]
			w.render()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, later := newWorld(), newWorld()
			w.service("web").Spec.Ports[0].Port = 81
			later.service("web").Spec.Ports[0].Port = 81
			second(later)
			r, err := Examine(w.Objects, later.question(t))
			if err != nil || len(r.Findings) > 0 {
				t.Errorf("%v, want no finding:\n%s", err, printed(t, r))
			}
		})
	}
	t.Run("a Service is no longer rejected", func(t *testing.T) {
		w, later := newWorld(), newWorld()
		w.NodeProxy.Status.Unrendered = []v1alpha1.UnrenderedService{{Namespace: "shop", Name: "web", Message: "larger than 1 MiB"}}
		r, err := Examine(w.Objects, later.question(t))
		if err != nil || len(r.Findings) > 0 {
			t.Errorf("%v, want no finding:\n%s", err, printed(t, r))
		}
	})
	t.Run("EndpointSlices get the port of a number", func(t *testing.T) {
		w, later := newWorld(), newWorld()
		for _, w := range []*world{w, later} {
			web := w.service("web")
			web.Spec.Ports = append(web.Spec.Ports, corev1.ServicePort{Name: "admin", Port: 81, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8081)})
		}
		w.render()
		slice := later.slice("web")
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new("admin"), Port: new(int32(8081)), Protocol: new(corev1.ProtocolTCP)})
		later.render()
		r, err := Examine(w.Objects, later.question(t))
		if err != nil || len(r.Findings) > 0 {
			t.Errorf("%v, want no finding:\n%s", err, printed(t, r))
		}
	})
	t.Run("something else is seen then, of another node", func(t *testing.T) {
		w, later := newWorld(), newWorld()
		w.node(0).Status.Difference = &v1alpha1.DifferenceReport{Count: 1, Examples: []string{"a rule"}}
		later.node(1).Status.Families = nil
		r, err := Examine(w.Objects, later.question(t))
		if err != nil || len(r.Findings) > 0 {
			t.Errorf("%v, want no finding, because each was found only once:\n%s", err, printed(t, r))
		}
	})
	t.Run("they cannot be read again", func(t *testing.T) {
		w := newWorld()
		w.service("web").Spec.Ports[0].Port = 81
		w.service("web").Spec.ExternalIPs = []string{"172.20.0.12"}
		w.render()
		w.service("web").Spec.Ports[0].Port = 82
		q := w.question(t)
		q.Again = func(time.Duration) (*cluster.Objects, error) { return nil, errors.New("the server is gone") }
		r, err := Examine(w.Objects, q)
		if err != nil {
			t.Fatal(err)
		}
		if got := names(r.Findings); got != "NodeAddressTaken" {
			t.Errorf("found %s, want only the certain ones", got)
		}
		if len(r.SkippedChecks) != 1 || r.SkippedChecks[0].Check != findings.CheckRendering || !strings.Contains(r.SkippedChecks[0].Message, "1 finding may be transient (RenderedOutdated of Service shop/web), because the second examination failed: the server is gone") {
			t.Errorf("skipped checks: %+v", r.SkippedChecks)
		}
	})
}

// TestPatience: the second examination waits until the controller must have reacted.
func TestPatience(t *testing.T) {
	for endpoints, want := range map[int]time.Duration{2: 2 * time.Second, 501: 2 * time.Second, 2000: 2 * time.Second, 2001: 6 * time.Second} {
		w := newWorld()
		web := w.slice("web")
		for len(web.Endpoints) < endpoints {
			web.Endpoints = append(web.Endpoints, web.Endpoints[0])
		}
		w.service("web").Spec.Ports[0].Port = 81
		q := w.question(t)
		var waited time.Duration
		q.Again = func(after time.Duration) (*cluster.Objects, error) {
			waited = after
			return w.Objects, nil
		}
		if _, err := Examine(w.Objects, q); err != nil {
			t.Fatal(err)
		}
		if waited != want || want <= render.Pace(render.Load{Endpoints: int32(endpoints)}) {
			t.Errorf("%d endpoints: waited %s, want %s", endpoints, waited, want)
		}
	}
}

// TestPatienceWithAgents: an agent writes its status every five seconds at most.
func TestPatienceWithAgents(t *testing.T) {
	w := newWorld()
	w.node(1).Status.Families = nil
	q := w.question(t)
	var waited time.Duration
	q.Again = func(after time.Duration) (*cluster.Objects, error) {
		waited = after
		return w.Objects, nil
	}
	if _, err := Examine(w.Objects, q); err != nil || waited <= 5*time.Second {
		t.Errorf("waited %s (%v), want more than the interval between two writes of an agent's status", waited, err)
	}
}

func TestUnknownService(t *testing.T) {
	_, err := Examine(newWorld().Objects, Question{Service: &types.NamespacedName{Namespace: "shop", Name: "wbe"}})
	if err == nil || !strings.HasPrefix(err.Error(), "there is no Service shop/wbe: ") {
		t.Errorf("error %v", err)
	}
}

// TestUnread: checks without permission are skipped, the others run.
func TestUnread(t *testing.T) {
	w := newWorld()
	w.removePods("web")
	w.render()
	w.Pods = nil
	w.Unread = []cluster.Unread{{Kind: cluster.Pods, Why: "you may not list pods"}, {Kind: cluster.NodeProxyPolicies, Why: "you may not list policies"}}
	r := w.examine(t, "")
	if got := names(r.Findings); got != "NoEndpoint" {
		t.Errorf("found %s", got)
	}
	var made []string
	for _, n := range r.SkippedChecks {
		made = append(made, string(n.Check))
	}
	if got := strings.Join(made, " "); got != "controller endpoints policies" {
		t.Errorf("skipped checks: %s", got)
	}
	if table := printed(t, r); !strings.Contains(table, "you may not list pods") || !strings.Contains(table, "SKIPPED CHECKS") {
		t.Errorf("the report lacks the reason:\n%s", table)
	}
}

// TestServicesUnread: without Services, their number and existence are unknown.
func TestServicesUnread(t *testing.T) {
	for asked, want := range map[string]string{
		"":         "Services on 2 nodes: no problems found, but some checks were skipped\n",
		"shop/nix": "Service shop/nix (not readable) on 2 nodes: no problems found, but some checks were skipped\n",
	} {
		w := newWorld()
		w.Services, w.Unread = nil, []cluster.Unread{{Kind: cluster.Services, Why: "you may not list services"}}
		r := w.examine(t, asked)
		if table := printed(t, r); !strings.HasPrefix(table, want) {
			t.Errorf("%q: want %q:\n%s", asked, want, table)
		}
		if printed, err := json.Marshal(r); err != nil || strings.Contains(string(printed), `"services"`) {
			t.Errorf("%q: %v, a number of Services is printed: %s", asked, err, printed)
		}
	}
}

// TestNewerFormat: rules of a newer release are not reported as wrong.
func TestNewerFormat(t *testing.T) {
	w := newWorld()
	w.ServiceRules[1].Spec.FormatVersion = 3
	r := w.examine(t, "")
	if got := printed(t, r); len(r.Findings) > 0 || !strings.Contains(got, "rendering, traffic-policy, hairpin, exposure: ServiceProxyRules shop.web: format 3 needs a newer release") {
		t.Errorf("want only the checks that need the rules to be skipped:\n%s", got)
	}
	if slices.ContainsFunc(r.Exposure, func(x Exposure) bool { return x.Service == "shop/web" }) {
		t.Errorf("rules of an unknown format are listed as exposed: %+v", r.Exposure)
	}
}

// TestExposed: all ways from outside are listed.
func TestExposed(t *testing.T) {
	w := newWorld()
	w.service("web").Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	w.node(1).Spec.Settings.NodePorts = &v1alpha1.NodePortSettings{AddressMode: new(v1alpha1.NodePortsPrimary)}
	w.render()
	var got []string
	for _, x := range w.examine(t, "").Exposure {
		got = append(got, strings.Join([]string{x.Service, x.Type, x.Addresses, strings.Join(x.Ports, ","), x.Clients}, " | "))
	}
	want := []string{
		"shop/web | NodePort | every address of 1 node, the primary addresses of 1 node | 30080/TCP | any",
		"shop/web | ExternalIP | 198.51.100.20 | 80/TCP | any",
		"shop/web | LoadBalancerIP | 203.0.113.10 | 80/TCP | 192.0.2.0/24",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("exposed:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestExposedAtBoth: the source ranges of an external IP that is a load-balancer IP, too, depend on the
// mode.
func TestExposedAtBoth(t *testing.T) {
	for clients, modes := range map[string][]v1alpha1.ProxyMode{
		"any":                                {v1alpha1.ModeIPTables, v1alpha1.ModeIPVS},
		"any; in mode NFTables 192.0.2.0/24": {v1alpha1.ModeIPTables, v1alpha1.ModeNFTables},
		"192.0.2.0/24":                       {v1alpha1.ModeNFTables, v1alpha1.ModeNFTables},
	} {
		w := newWorld()
		svc := w.service("web")
		svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, "203.0.113.10")
		w.render()
		for i, mode := range modes {
			w.node(i).Status.Mode = mode
		}
		got := map[string]string{}
		for _, x := range w.examine(t, "").Exposure {
			got[x.Type+" "+x.Addresses] = x.Clients
		}
		for of, want := range map[string]string{
			"ExternalIP 198.51.100.20": "any", "ExternalIP 203.0.113.10": clients, "LoadBalancerIP 203.0.113.10": "192.0.2.0/24",
		} {
			if got[of] != want {
				t.Errorf("%v: clients of %s are %q, want %q", modes, of, got[of], want)
			}
		}
	}
}

// TestScaledToZero: a Service without pods is a warning, unless the user asks for it.
func TestScaledToZero(t *testing.T) {
	for asked, want := range map[string]findings.Severity{"": findings.Warning, "shop/web": findings.Problem} {
		w := newWorld()
		w.removePods("web")
		w.render()
		if r := w.examine(t, asked); names(r.Findings) != "NoPodMatches" || r.Findings[0].Severity != want {
			t.Errorf("asked for %q, want a %s:\n%s", asked, want, printed(t, r))
		}
	}
	w := newWorld()
	w.removePods("kube-dns")
	w.render()
	if r := w.examine(t, ""); len(r.Findings) != 1 || r.Findings[0].Severity != findings.Problem {
		t.Errorf("without DNS:\n%s", printed(t, r))
	}
}

// TestExposedBesideOthers: addresses that another Service gets are not listed.
func TestExposedBesideOthers(t *testing.T) {
	w := newWorld()
	w.addService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "late", CreationTimestamp: ago(time.Hour)},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.30", ClusterIPs: []string{"10.96.0.30"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			ExternalIPs: []string{"198.51.100.20", "198.51.100.21"}, Selector: map[string]string{"app": "late"},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP},
				{Name: "admin", Port: 81, TargetPort: intstr.FromInt32(8081), Protocol: corev1.ProtocolTCP},
			},
		},
	}, "10.244.1.7", "10.244.2.7")
	w.render()
	var got []string
	for _, x := range w.examine(t, "").Exposure {
		if x.Type == "ExternalIP" {
			got = append(got, strings.Join([]string{x.Service, x.Addresses, strings.Join(x.Ports, ",")}, " | "))
		}
	}
	want := []string{"shop/late | 198.51.100.20 | 81/TCP", "shop/late | 198.51.100.21 | 80/TCP,81/TCP", "shop/web | 198.51.100.20 | 80/TCP"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("exposed:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func withConsequences(found []findings.Finding) []findings.Finding {
	var all []findings.Finding
	for _, f := range found {
		all = append(append(all, f), withConsequences(f.Consequences)...)
	}
	return all
}
