package ipvstest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
)

// Kernel is a model of a kernel. Set its fields before use.
type Kernel struct {
	*ipvsmodel.Kernel
	// Lacks, if not nil, is why the node has no IPVS. It should wrap
	// dataplane.ErrUnsupported.
	Lacks error
	// Reject, if not nil, returns the error of a call that is to fail. It runs while the
	// kernel is locked.
	Reject func(ipvsmodel.Call) error

	mu      sync.Mutex
	calls   []ipvsmodel.Call
	looking bool // our own calls are neither recorded nor rejected
}

// New returns the empty kernel of a node with these addresses.
func New(family dataplane.Family, addresses ...netip.Addr) *Kernel {
	k := &Kernel{Kernel: ipvsmodel.New(family, addresses...)}
	k.Hook = k.record
	return k
}

func (k *Kernel) record(c ipvsmodel.Call) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.looking {
		return nil
	}
	if c.Method == "Events" {
		return k.Lacks
	}
	k.calls = append(k.calls, c)
	if k.Lacks != nil {
		return k.Lacks
	}
	if k.Reject != nil {
		return k.Reject(c)
	}
	return nil
}

// reads are the methods that change nothing.
var reads = map[string]bool{
	"Open": true, "Servers": true, "Reals": true, "Timeouts": true, "Bound": true, "Addresses": true,
	"Sets": true, "Sysctl": true, "Count": true, "Probe": true,
}

// Calls returns the calls since the last Reset.
func (k *Kernel) Calls() []ipvsmodel.Call {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.calls)
}

// Reset forgets the calls.
func (k *Kernel) Reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = nil
}

// Writes returns the calls since the last Reset that change something, as text.
func (k *Kernel) Writes() []string {
	var out []string
	for _, c := range k.Calls() {
		if !reads[c.Method] {
			out = append(out, Text(c))
		}
	}
	return out
}

// Messages returns how many netlink messages the calls since the last Reset would
// cost: one each, but one for each entry of an ipset, and none for Open.
func (k *Kernel) Messages() int {
	n := 0
	for _, c := range k.Calls() {
		switch c.Method {
		case "Open":
		case "ChangeSets":
			for _, s := range c.Sets {
				n += len(s.Add) + len(s.Remove)
			}
		default:
			n++
		}
	}
	return n
}

// Text prints a call.
func Text(c ipvsmodel.Call) string {
	parts := []string{c.Method}
	if c.Key.Addr.IsValid() {
		parts = append(parts, keyText(c.Key))
	}
	if c.Real.IsValid() {
		parts = append(parts, c.Real.String())
	}
	switch c.Method {
	case "AddServer", "ChangeServer":
		parts = append(parts, fmt.Sprintf("%s %#x %d", c.Server.Scheduler, uint32(c.Server.Flags), c.Server.Timeout))
	case "AddReal", "ChangeReal":
		parts = append(parts, fmt.Sprint(c.Weight))
	}
	if c.Addr.IsValid() {
		parts = append(parts, c.Addr.String())
	}
	for _, s := range c.Sets {
		for _, e := range s.Add {
			parts = append(parts, fmt.Sprintf("+%s %s", s.Name, e))
		}
		for _, e := range s.Remove {
			parts = append(parts, fmt.Sprintf("-%s %s", s.Name, e))
		}
	}
	if c.Name != "" {
		parts = append(parts, c.Name)
	}
	return strings.Join(parts, " ")
}

func keyText(k ipvs.Key) string {
	return fmt.Sprintf("%s,%s:%d", k.Addr, strings.ToLower(string(k.Protocol)), k.Port)
}

// unrecorded runs f, whose calls are not recorded.
func (k *Kernel) unrecorded(f func()) {
	set := func(looking bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.looking = looking
	}
	set(true)
	defer set(false)
	f()
}

// Entries returns the entries of an ipset, sorted.
func (k *Kernel) Entries(name ipvs.SetName) []string {
	var out []string
	k.unrecorded(func() {
		sets, _ := k.Sets([]ipvs.SetName{name}) // the model does not fail
		for _, e := range sets[name] {
			out = append(out, string(e))
		}
	})
	return out
}

// Keys returns the virtual servers as text, sorted.
func (k *Kernel) Keys() []string {
	var out []string
	k.unrecorded(func() {
		servers, _ := k.Servers() // the model does not fail
		for key := range servers {
			out = append(out, keyText(key))
		}
	})
	slices.Sort(out)
	return out
}

// Server prints a virtual server with its real servers, as in
// "rr 0x1 10800 10.0.0.1:80 10.0.0.2:80=0 10.0.0.3:80/3": flags and timeout if there
// are any, the weight if it is not 1, and the forwarding if it is not masquerading. It
// is empty if there is none.
func (k *Kernel) Server(key ipvs.Key) string {
	var (
		servers map[ipvs.Key]ipvs.Server
		reals   map[netip.AddrPort]ipvs.Real
	)
	k.unrecorded(func() {
		servers, _ = k.Servers() // the model does not fail
		reals, _ = k.Reals(key)
	})
	s, found := servers[key]
	if !found {
		return ""
	}
	out := []string{s.Scheduler}
	if s.Flags != 0 {
		out = append(out, fmt.Sprintf("%#x", uint32(s.Flags)))
	}
	if s.Timeout != 0 {
		out = append(out, fmt.Sprint(s.Timeout))
	}
	for _, a := range slices.SortedFunc(maps.Keys(reals), netip.AddrPort.Compare) {
		text := a.String()
		if w := reals[a].Weight; w != 1 {
			text += fmt.Sprintf("=%d", w)
		}
		if f := reals[a].Forwarding; f != 0 {
			text += fmt.Sprintf("/%d", f)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}
