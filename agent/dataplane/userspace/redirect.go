package userspace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Kernel is the data plane of all kernel modes of one IP family.
type Kernel interface {
	dataplane.Dataplane
	dataplane.Observer
}

// Dataplane has the kernel redirect the connections of some Services to a Proxy: of those that ask for it,
// or in mode Userspace of all. All else the kernel's data plane does alone.
type Dataplane struct {
	Kernel
	family dataplane.Family
	proxy  *Proxy
	// redirected are the Services that the proxy serves.
	redirected map[dataplane.ServiceName]redirected
	// services are those of the last Ruleset as the kernel serves them; nil: as the Ruleset has them.
	services map[dataplane.ServiceName]*dataplane.Service
	// last is the kernel's last Ruleset, without what had changed then; nil unless the proxy serves something.
	last *dataplane.Ruleset
	// unknown: the last Apply has failed.
	unknown bool
	// gone are Services that the proxy serves until the kernel redirects them no longer.
	gone sets.Set[dataplane.ServiceName]
	// warnings and notes are about Services that the proxy should serve.
	warnings map[dataplane.ServiceName]string
	notes    map[dataplane.ServiceName]string
}

// redirected is a Service, and the same as the kernel serves it.
type redirected struct{ desired, kernel *dataplane.Service }

var (
	_ dataplane.Dataplane = (*Dataplane)(nil)
	_ dataplane.Observer  = (*Dataplane)(nil)
)

// Redirect returns the data plane of one IP family with a Proxy, which may be that of others, too.
func Redirect(family dataplane.Family, kernel Kernel, proxy *Proxy) *Dataplane {
	return &Dataplane{
		Kernel: kernel, family: family, proxy: proxy,
		redirected: map[dataplane.ServiceName]redirected{}, gone: sets.Set[dataplane.ServiceName]{},
		warnings: map[dataplane.ServiceName]string{}, notes: map[dataplane.ServiceName]string{},
	}
}

// Apply implements dataplane.Dataplane. The proxy serves a Service before the kernel redirects its
// connections, and ends what it has of one after the kernel has stopped that.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	kernel := d.redirect(r)
	if d.last != nil || kernel != r {
		d.last = &dataplane.Ruleset{Mode: kernel.Mode, Node: kernel.Node, Services: kernel.Services, Preserve: kernel.Preserve, Rest: kernel.Rest}
	}
	result, err := d.Kernel.Apply(ctx, kernel)
	if d.unknown = err != nil; d.unknown {
		return result, err //nolint:wrapcheck // the kernel's data plane has
	}
	d.settle(&result)
	if kernel == r {
		d.last = nil
	} else {
		result.Instead = kernel
	}
	add := func(to *[]string, texts map[dataplane.ServiceName]string) {
		for _, name := range slices.SortedFunc(maps.Keys(texts), dataplane.ServiceName.Compare) {
			if len(*to) < dataplane.MaxExamples {
				*to = append(*to, texts[name])
			}
		}
	}
	add(&result.Notes, d.notes)
	add(&result.Warnings, d.warnings)
	return result, nil
}

// settle ends what the kernel redirects no longer. Of a Service that the kernel has rejected, or not finished,
// it may have the former rules.
func (d *Dataplane) settle(result *dataplane.Result) {
	former := sets.KeySet(result.Unfinished)
	for name := range result.Rejected {
		if result.Reduced[name] == nil {
			former.Insert(name)
		}
	}
	for name := range d.gone.Difference(former) {
		if _, again := d.redirected[name]; !again {
			_, _ = d.proxy.Serve(d.family, name, nil) // removing one cannot fail
		}
		d.gone.Delete(name)
	}
	d.proxy.Settle(d.family, former)
}

// Verify implements dataplane.Dataplane. An audit compares what the kernel would have if it served all
// Services alone, as another proxy does.
func (d *Dataplane) Verify(ctx context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
	if d.services != nil && !o.Audit {
		kernel := *r
		kernel.Services = d.services
		r = &kernel
	}
	return d.Kernel.Verify(ctx, r, o) //nolint:wrapcheck // the kernel's data plane has
}

// Cleanup implements dataplane.Dataplane.
func (d *Dataplane) Cleanup(ctx context.Context, o dataplane.CleanupOptions) error {
	if err := d.Kernel.Cleanup(ctx, o); err != nil {
		return err //nolint:wrapcheck // the kernel's data plane has
	}
	for name := range sets.KeySet(d.redirected).Union(d.gone) {
		_, _ = d.proxy.Serve(d.family, name, nil) // removing one cannot fail
	}
	clear(d.redirected)
	clear(d.gone)
	clear(d.warnings)
	clear(d.notes)
	d.services, d.last, d.unknown = nil, nil, false
	d.proxy.Settle(d.family, nil)
	return nil
}

// redirect returns a Ruleset as the kernel has to serve it.
func (d *Dataplane) redirect(r *dataplane.Ruleset) *dataplane.Ruleset {
	s := r.Node.Settings
	d.proxy.Configure(s.Userspace)
	all := *s.Mode == v1alpha1.ModeUserspace
	if r.Full { // as after a change of the node's settings or addresses
		d.services = nil
	}
	known := !r.Full && !r.Recheck && len(*d.proxy.node.Load()) > 0 // where node ports answer
	changed := map[dataplane.ServiceName]*dataplane.Service{}
	for name := range d.toCheck(r) {
		svc := r.Services[name]
		delete(d.notes, name)
		delete(d.warnings, name)
		before, was := d.redirected[name]
		if svc == nil || !all && !svc.Userspace {
			if was {
				delete(d.redirected, name)
				d.gone.Insert(name)
				svc = leaving(svc, before.kernel)
			}
			if was || d.services != nil {
				changed[name] = svc
			}
			continue
		}
		if !known {
			d.proxy.setNode(r.Node.Addresses)
			known = true
		}
		served, err := d.serve(r, name, svc)
		switch {
		case errors.Is(err, errTooMany): // which no repair changes
			d.notes[name] = fmt.Sprintf("Service %s: the kernel serves ports of it: %v", name, errTooMany)
		case err != nil:
			d.warnings[name] = fmt.Sprintf("Service %s: the kernel serves it, not the userspace proxy: %v", name, err)
		default:
			if text := unserved(svc); text != "" {
				d.notes[name] = fmt.Sprintf("Service %s: %s", name, text)
			}
		}
		if was && before.desired == svc && sameListeners(before.kernel, served) {
			served = before.kernel // the kernel's data plane knows it by its address
		}
		d.redirected[name] = redirected{svc, served}
		changed[name] = served
	}
	return d.ruleset(r, changed)
}

// toCheck yields the Services that the proxy may have to serve from now on, or no longer.
func (d *Dataplane) toCheck(r *dataplane.Ruleset) iter.Seq[dataplane.ServiceName] {
	if !r.Full {
		return maps.Keys(r.Dirty)
	}
	return func(yield func(dataplane.ServiceName) bool) {
		for name := range r.Services {
			if !yield(name) {
				return
			}
		}
		for name := range d.redirected {
			if r.Services[name] == nil && !yield(name) {
				return
			}
		}
	}
}

// serve has the proxy serve a Service.
func (d *Dataplane) serve(r *dataplane.Ruleset, name dataplane.ServiceName, svc *dataplane.Service) (*dataplane.Service, error) {
	if err := d.proxy.Listen(d.family, r.Node.Addresses); err != nil {
		return svc, err
	}
	return d.proxy.Serve(d.family, name, svc)
}

// ruleset returns the Ruleset of the kernel, given how it has to serve Services that may have changed.
func (d *Dataplane) ruleset(r *dataplane.Ruleset, changed map[dataplane.ServiceName]*dataplane.Service) *dataplane.Ruleset {
	if len(d.redirected)+len(d.gone) == 0 {
		d.services = nil
		return r
	}
	kernel := *r
	if d.services == nil {
		d.services = maps.Clone(r.Services)
		for name, both := range d.redirected {
			d.services[name] = both.kernel
		}
	}
	for name, svc := range changed {
		if svc == nil {
			delete(d.services, name)
			continue
		}
		d.services[name] = svc
	}
	kernel.Services = d.services
	// Listeners of a former agent, which the kernel may have, answer no more.
	kernel.Preserve = maps.Clone(r.Preserve)
	maps.DeleteFunc(kernel.Preserve, func(name dataplane.ServiceName, _ struct{}) bool {
		_, ours := d.redirected[name]
		return ours
	})
	return &kernel
}

// leaving returns a Service that the kernel serves from now on, with the listeners of the proxy as endpoints
// that still serve: UDP clients get the answers that they wait for.
func leaving(svc, proxied *dataplane.Service) *dataplane.Service {
	if svc == nil {
		return nil
	}
	out := *svc
	out.Ports = slices.Clone(svc.Ports)
	for i := range out.Ports {
		p := &out.Ports[i]
		for j := range proxied.Ports {
			if former := &proxied.Ports[j]; former.Port == p.Port && former.Protocol == p.Protocol && p.Protocol == v1alpha1.ProtocolUDP {
				p.Serving = slices.Concat(p.Serving, former.Cluster, former.Local)
			}
		}
	}
	return &out
}

// unserved names the ports of a Service that the proxy cannot serve; empty: it serves all.
func unserved(svc *dataplane.Service) string {
	for i := range svc.Ports {
		if svc.Ports[i].Protocol == v1alpha1.ProtocolSCTP {
			return fmt.Sprintf("the kernel serves port %d/SCTP, not the userspace proxy, which has no SCTP", svc.Ports[i].Port)
		}
	}
	return ""
}

// sameListeners reports whether the kernel has to serve one and the same Service in the same way.
func sameListeners(a, b *dataplane.Service) bool {
	return slices.EqualFunc(a.Ports, b.Ports, func(a, b dataplane.Port) bool {
		return slices.Equal(a.Cluster, b.Cluster) && slices.Equal(a.Local, b.Local)
	})
}

// leaveToKernel has the kernel serve all Services alone, so that new connections are served without the
// proxy. Connections that the proxy has continue.
func (d *Dataplane) leaveToKernel(ctx context.Context) error {
	if d.last == nil {
		return nil
	}
	kernel := *d.last
	kernel.Full, kernel.Dirty, kernel.Services = d.unknown, map[dataplane.ServiceName]struct{}{}, maps.Clone(d.last.Services)
	for name, both := range d.redirected {
		kernel.Dirty[name], kernel.Services[name] = struct{}{}, both.desired
	}
	if _, err := d.Kernel.Apply(ctx, &kernel); err != nil {
		return fmt.Errorf("%s: have the kernel serve the %d Services of the userspace proxy: %w", d.family, len(d.redirected), err)
	}
	clear(d.redirected)
	d.services, d.last = nil, nil
	return nil
}

// Configure applies settings.
func (p *Proxy) Configure(s *v1alpha1.UserspaceSettings) {
	p.SetConnectTimeout(time.Duration(*s.ConnectTimeoutMilliseconds) * time.Millisecond)
	p.SetLimits(Limits{Connections: int64(*s.MaxConnections), PerPort: int64(*s.MaxConnectionsPerPort)})
}
