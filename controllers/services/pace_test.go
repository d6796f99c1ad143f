package services

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// writer asks for the writes of Services and makes those that it may.
type writer struct {
	*Memory
	stored  map[types.NamespacedName]bool
	written int // bytes
}

// write writes a Service, if it may, and returns for how long it must wait otherwise.
func (w *writer) write(key types.NamespacedName, bytes int, now time.Time) time.Duration {
	wait := w.waiting(key, w.stored[key], now)
	if wait == 0 {
		wait = w.wait(key, render.Load{Bytes: bytes}, w.stored[key], true, now)
	}
	if wait == 0 {
		w.wrote(key, bytes, true, now)
		w.accepted(key)
		w.stored[key] = true
		w.written += bytes
	}
	return wait
}

func newWriter(t *testing.T) *writer {
	t.Helper()
	m, _ := newTestMemory(t)
	m.NewTerm()
	return &writer{Memory: m, stored: map[types.NamespacedName]bool{}}
}

// service is one of many of a namespace.
func service(namespace string, i int) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: "s" + strconv.Itoa(i)}
}

// A namespace that changes Services all the time has the bytes of its share written, whether it
// changes those that there are, has them proxied now and then, or creates others. No other waits.
func TestNamespaceOverItsShareDelaysItselfAlone(t *testing.T) {
	const services, bytes, lasting = 2000, 10 << 10, 5 * time.Minute
	for name, next := range map[string]func(*writer, int) types.NamespacedName{
		"changed": func(_ *writer, i int) types.NamespacedName { return service("attacker", i%services) },
		"toggled": func(w *writer, i int) types.NamespacedName {
			key := service("attacker", i%services)
			if w.stored[key] {
				w.end(key)
				w.released(key)
				delete(w.stored, key)
			}
			return key
		},
		"created": func(w *writer, i int) types.NamespacedName {
			if i >= services { // the oldest goes, whether it was written or not
				old := service("attacker", i-services)
				w.forget(old)
				delete(w.stored, old)
			}
			return service("attacker", i)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, other := newWriter(t), 0
			end := controllertest.Noon.Add(lasting)
			for i, now := 0, controllertest.Noon; now.Before(end); i, now = i+1, now.Add(2*time.Millisecond) {
				w.write(next(w, i), bytes, now) // 5 MB a second
				if i%50 != 0 {
					continue
				}
				before := w.written
				if wait := w.write(service("victim", other%100), bytes, now); wait > 0 {
					t.Fatalf("after %s a Service of another namespace waits %s", now.Sub(controllertest.Noon), wait)
				}
				w.written = before
				other++
			}
			// The burst, and half a write for rounding.
			most := int((lasting+namespaceBurst).Seconds())*namespaceShare + bytes
			if w.written > most {
				t.Errorf("%d bytes were written in %s, at most %d may be", w.written, lasting, most)
			}
			if name != "created" && w.written < most*9/10 { // there, what would be written next is gone
				t.Errorf("%d bytes were written in %s, %d may be", w.written, lasting, most)
			}
			if len(w.services) > services+100 {
				t.Errorf("%d Services are remembered", len(w.services))
			}
		})
	}
}

// Ordinary changes never wait for the share of a namespace: neither 1,000 changed endpoints of
// large Services in 10 s, each written by itself, nor 10,000 Services that are created at once.
func TestNamespaceShareIsNotFeltOrdinarily(t *testing.T) {
	group := v1alpha1.EndpointGroup{State: v1alpha1.EndpointReady, Zones: []string{"europe-west-1a"}}
	for i := range 500 {
		group.Addresses = append(group.Addresses, fmt.Sprintf("10.250.%d.%d:8080", i/250, i%250+1))
	}
	rules := &v1alpha1.ServiceProxyRules{}
	rules.Spec.Ports = []v1alpha1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, Endpoints: []v1alpha1.EndpointGroup{group}}}
	_, large, err := objects.Measure(rules)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("500 endpoints take %d bytes", large)
	for name, c := range map[string]struct {
		writes, bytes int
		in            time.Duration
	}{
		"changed endpoints": {1000, large, 10 * time.Second},
		"created Services":  {10000, 1000, time.Second},
	} {
		p := pacing.NewBuckets(namespaceShare, namespaceBurst, leastRulesBytes)
		for i := range c.writes {
			now := controllertest.Noon.Add(c.in * time.Duration(i) / time.Duration(c.writes))
			var of pacing.Claim
			if wait := p.Wait("shop", &of, c.bytes, now); wait > 0 {
				t.Fatalf("%s: number %d waits %s", name, i, wait)
			}
			p.Wrote("shop", &of, c.bytes, now)
		}
	}
}

// Rules that have vanished are written at once, however much their namespace has written: agents
// retain them only as long as the inventory names them.
func TestVanishedRulesDoNotWaitForTheirNamespace(t *testing.T) {
	w := newWriter(t)
	w.pace.Of("shop", controllertest.Noon).Next = controllertest.Noon.Add(time.Minute)
	few := render.Load{Bytes: 1000}
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	var older []corev1.Service
	for _, name := range []string{"older than the term", "released", "came again"} {
		older = append(older, *controllertest.ServiceNamed("shop", name))
	}
	w.begin(older)
	w.begin([]corev1.Service{*controllertest.ServiceNamed("shop", "new")}) // it is known already
	for name, c := range map[string]struct {
		prepare func(types.NamespacedName)
		delayed bool
	}{
		"new":                 {func(types.NamespacedName) {}, true},
		"older than the term": {func(types.NamespacedName) {}, false},
		"came again":          {func(key types.NamespacedName) { w.forget(key) }, true},
		"vanished":            {func(key types.NamespacedName) { w.waiting(key, true, controllertest.Noon) }, false},
		"vanished waiting": {func(key types.NamespacedName) {
			if w.wait(key, few, true, true, controllertest.Noon) == 0 {
				t.Error("a change does not wait")
			}
		}, false},
		"released": {func(key types.NamespacedName) {
			w.end(key)
			w.released(key)
			w.waiting(key, true, controllertest.Noon) // by a cache that is behind
		}, true},
		"not released": {func(key types.NamespacedName) {
			w.waiting(key, true, controllertest.Noon)
			w.end(key)
		}, false},
		"released and written": {func(key types.NamespacedName) {
			w.end(key)
			w.released(key)
			w.wrote(key, 1000, true, controllertest.Noon)
		}, false},
	} {
		key := key(name)
		c.prepare(key)
		before := len(w.Delayed())
		wait := w.wait(key, few, false, true, controllertest.Noon)
		if delayed := len(w.Delayed()) > before; wait > 0 != c.delayed || delayed != c.delayed {
			t.Errorf("%s: it waits %s, delayed %v, want %v", name, wait, delayed, c.delayed)
		}
		if again := w.waiting(key, false, controllertest.Noon); again > 0 != c.delayed {
			t.Errorf("%s: it need not be rendered for %s", name, again)
		}
	}
	w.forget(key("older than the term"))
	if len(w.older) != 1 {
		t.Errorf("%d Services are known as older than the term, one is left", len(w.older))
	}
	w.NewTerm()
	if w.begun() {
		t.Error("what is older is known before the new term has begun")
	}
}

// A new term begins with nothing that waits, nor with bytes taken for it.
func TestNewTermGivesBackWhatIsNotWritten(t *testing.T) {
	w := newWriter(t)
	full := controllertest.Noon.Add(time.Minute)
	w.pace.Of("shop", controllertest.Noon).Next = full
	for i := range 10 {
		w.wait(service("shop", i), render.Load{Bytes: 1 << 20}, i%2 == 0, true, controllertest.Noon)
	}
	if len(w.Delayed()) != 5 {
		t.Fatalf("delayed are %v", w.Delayed())
	}
	w.NewTerm()
	if next := w.pace.Of("shop", controllertest.Noon).Next; !next.Equal(full) || len(w.Delayed()) != 0 {
		t.Errorf("the next may be written at %s, want %s; delayed are %v", next, full, w.Delayed())
	}
	if wait := w.waiting(service("shop", 0), true, controllertest.Noon); wait > 0 {
		t.Errorf("one that waited need not be rendered for %s", wait)
	}
}

// What is delayed is announced once, as is its end, however it comes about.
func TestDelayedServicesAreAnnounced(t *testing.T) {
	m, changes := newTestMemory(t)
	m.NewTerm()
	m.pace.Of("shop", controllertest.Noon).Next = controllertest.Noon.Add(time.Minute)
	for name, end := range map[string]func(){
		"written":    func() { m.wrote(cart, 1000, true, controllertest.Noon) },
		"accepted":   func() { m.accepted(cart) },
		"ended":      func() { m.end(cart) },
		"gone":       func() { m.forget(cart) },
		"unrendered": func() { m.notRendered(cart, "no", "no", 1, controllertest.Noon) },
	} {
		*changes = 0
		for range 2 {
			if m.wait(cart, render.Load{Bytes: 1000}, false, true, controllertest.Noon) == 0 {
				t.Fatalf("%s: it does not wait", name)
			}
		}
		if *changes != 1 || len(m.Delayed()) != 1 || !m.Settled(cart) {
			t.Errorf("%s: %d changes announced, delayed %v", name, *changes, m.Delayed())
		}
		if end(); *changes != 2 || len(m.Delayed()) != 0 {
			t.Errorf("%s: then %d changes announced, delayed %v", name, *changes, m.Delayed())
		}
		m.forget(cart)
	}
}
