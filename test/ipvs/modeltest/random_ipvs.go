package modeltest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Sets are the ipsets that changes are about and SetMatches ask: one of each type that
// the data plane has.
var Sets = map[ipvs.SetName]ipvs.SetType{
	"RANDOM-IP": ipvs.HashIP, "RANDOM-IP-PORT": ipvs.HashIPPort, "RANDOM-IP-PORT-IP": ipvs.HashIPPortIP,
	"RANDOM-IP-PORT-NET": ipvs.HashIPPortNet, "RANDOM-PORT": ipvs.BitmapPort,
}

// SetNames are the names of Sets in order, so that a seed repeats what is drawn.
func SetNames() []ipvs.SetName {
	return []ipvs.SetName{"RANDOM-IP", "RANDOM-IP-PORT", "RANDOM-IP-PORT-IP", "RANDOM-IP-PORT-NET", "RANDOM-PORT"}
}

// Directions are what rules may ask of the packet for a type of ipset.
func Directions(kind ipvs.SetType) []string {
	switch kind {
	case ipvs.HashIPPort:
		return []string{"dst,dst", "src,dst"}
	case ipvs.HashIPPortIP, ipvs.HashIPPortNet:
		return []string{"dst,dst,src", "dst,dst,src", "src,dst,dst", "dst,dst,dst"}
	default:
		return []string{"dst"}
	}
}

// IPVSMatches are for Random.Matches: all that rules may ask Sets and IPVS.
func (r *Random) IPVSMatches() []string {
	var out []string
	for _, name := range SetNames() {
		for _, d := range Directions(Sets[name]) {
			out = append(out, fmt.Sprintf("-m set %%s--match-set %s %s", name, d))
		}
	}
	out = append(out, "-m set %s--match-set RANDOM-IP src", "-m ipvs %s--vport 80", "-m ipvs --vproto udp %s--vport 80")
	for _, a := range r.Virtual() {
		out = append(out, "-m ipvs %s--vaddr "+a.String())
	}
	return out
}

// Virtual are the addresses that changes put on kube-ipvs0.
func (r *Random) Virtual() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(r.pick("10.96.0.1", "fd00:96::1")), netip.MustParseAddr(r.pick("10.96.0.2", "fd00:96::2"))}
}

// schedulers are all but ovf, which rejects connections where each real server has as
// many as its weight: the model does not count those that it did not see.
var schedulers = []string{"rr", "rr", "wrr", "sh", "sh", "mh", "lc", "wlc", "dh", "sed", "nq", "fo", "lblc", "lblcr"}

// Change is a change of what a node has of IPVS.
type Change struct {
	Name string
	Do   func(ipvs.Kernel) error
}

func (r *Random) key() ipvs.Key {
	protocols := []v1alpha1.Protocol{v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP, v1alpha1.ProtocolUDP}
	if r.SCTP {
		protocols = append(protocols, v1alpha1.ProtocolSCTP)
	}
	return ipvs.Key{
		Addr: netip.MustParseAddr(draw(r.Rand, r.virtual(), r.virtual(), r.node())), Port: uint16(r.port()), //nolint:gosec // a port
		Protocol: draw(r.Rand, protocols...),
	}
}

func (r *Random) server() ipvs.Server {
	s := ipvs.Server{Scheduler: draw(r.Rand, schedulers...)}
	if s.Scheduler == "mh" && r.likely(50) {
		s.Flags |= ipvs.FlagSourcePort
	}
	if r.likely(40) {
		s.Flags |= ipvs.FlagPersistent
		s.Timeout = 3600
	}
	return s
}

func (r *Random) realServer() netip.AddrPort {
	a := draw(r.Rand, r.remote(), r.remote(), r.remote(), Pod(r.Six).String(), r.node())
	return netip.AddrPortFrom(netip.MustParseAddr(a), draw[uint16](r.Rand, 80, 8080))
}

func (r *Random) weight() int { return draw(r.Rand, 0, 0, 1, 1, 1, 1, 2, 5) }

// Entry draws an entry of an ipset, as the kernel prints it.
func (r *Random) Entry(kind ipvs.SetType) ipvs.Entry {
	address := draw(r.Rand, r.virtual(), r.virtual(), r.remote(), r.node())
	port := fmt.Sprintf("%s:%d", draw(r.Rand, "tcp", "udp", "udp", "sctp"), r.port())
	source := draw(r.Rand, r.outside(), r.outside(), Pod(r.Six).String(), r.node())
	switch kind {
	case ipvs.BitmapPort:
		return ipvs.Entry(fmt.Sprint(r.port()))
	case ipvs.HashIP:
		return ipvs.Entry(draw(r.Rand, address, source))
	case ipvs.HashIPPort:
		return ipvs.Entry(draw(r.Rand, address, address, source) + "," + port)
	case ipvs.HashIPPortIP:
		return ipvs.Entry(address + "," + port + "," + draw(r.Rand, source, source, address))
	default:
		a := netip.MustParseAddr(draw(r.Rand, source, source, address))
		bits := draw(r.Rand, a.BitLen(), a.BitLen()-1, a.BitLen()/2, 8, 1)
		if bits == a.BitLen() {
			return ipvs.Entry(address + "," + port + "," + a.String())
		}
		return ipvs.Entry(address + "," + port + "," + netip.PrefixFrom(a, bits).Masked().String())
	}
}

// Fill draws what a node has initially.
func (r *Random) Fill() []Change {
	out := []Change{{"create the device", func(k ipvs.Kernel) error { return k.CreateDevice() }}}
	for _, a := range r.Virtual() {
		if r.likely(85) {
			out = append(out, bind(a))
		}
	}
	var sets []ipvs.SetChange
	for _, name := range SetNames() {
		c := ipvs.SetChange{Name: name, Type: Sets[name], Create: true}
		entries := map[ipvs.SetType]int{ipvs.BitmapPort: 2, ipvs.HashIP: 3, ipvs.HashIPPort: 15}[c.Type]
		for range max(entries, 30*(1-min(entries, 1))) {
			if e := r.Entry(c.Type); !slices.Contains(c.Add, e) {
				c.Add = append(c.Add, e)
			}
		}
		sets = append(sets, c)
	}
	out = append(out, Change{fmt.Sprintf("sets %+v", sets), func(k ipvs.Kernel) error { return k.ChangeSets(sets) }})
	for range 12 {
		key := r.key()
		out = append(out, addServer(key, r.server()))
		for range r.IntN(4) {
			out = append(out, addReal(key, r.realServer(), r.weight()))
		}
	}
	return out
}

// Change draws a change, mostly of what one of keys names.
func (r *Random) Change(keys []ipvs.Key) Change {
	key := r.key()
	if len(keys) > 0 && r.likely(85) {
		key = draw(r.Rand, keys...)
	}
	address := draw(r.Rand, r.Virtual()...)
	switch r.IntN(12) {
	case 0:
		return addServer(key, r.server())
	case 1:
		s := r.server()
		return Change{fmt.Sprintf("change %s to %+v", key, s), func(k ipvs.Kernel) error { return k.ChangeServer(key, s) }}
	case 2:
		if r.likely(50) { // mostly there are as many as are added
			return Change{"delete " + key.String(), func(k ipvs.Kernel) error { return k.DeleteServer(key) }}
		}
		fallthrough
	case 3, 4:
		return addReal(key, r.realServer(), r.weight())
	case 5, 6, 7:
		real, weight := r.realServer(), r.weight()
		return Change{fmt.Sprintf("change %s of %s to %d", real, key, weight), func(k ipvs.Kernel) error { return k.ChangeReal(key, real, weight) }}
	case 8:
		real := r.realServer()
		return Change{fmt.Sprintf("delete %s of %s", real, key), func(k ipvs.Kernel) error { return k.DeleteReal(key, real) }}
	case 9:
		value := draw(r.Rand, "0", "1")
		return Change{"expire_quiescent_template " + value, func(k ipvs.Kernel) error { return k.SetSysctl("net/ipv4/vs/expire_quiescent_template", value) }}
	case 10:
		name := draw(r.Rand, SetNames()...)
		c := []ipvs.SetChange{{Name: name, Type: Sets[name], Add: []ipvs.Entry{r.Entry(Sets[name])}, Remove: []ipvs.Entry{r.Entry(Sets[name])}}}
		return Change{fmt.Sprintf("sets %+v", c), func(k ipvs.Kernel) error { return k.ChangeSets(c) }}
	}
	switch r.IntN(5) {
	case 0:
		return Change{"unbind " + address.String(), func(k ipvs.Kernel) error { return k.Unbind(address) }}
	case 1:
		source := Node(r.Six)[0]
		return Change{"yield " + address.String(), func(k ipvs.Kernel) error { return k.Yield(address, source) }}
	case 2:
		return Change{"reclaim", func(k ipvs.Kernel) error { return k.Reclaim(nil) }}
	default:
		return bind(address)
	}
}

func bind(a netip.Addr) Change {
	return Change{"bind " + a.String(), func(k ipvs.Kernel) error { return k.Bind(a) }}
}

func addServer(key ipvs.Key, s ipvs.Server) Change {
	return Change{fmt.Sprintf("add %s %+v", key, s), func(k ipvs.Kernel) error { return k.AddServer(key, s) }}
}

func addReal(key ipvs.Key, real netip.AddrPort, weight int) Change {
	return Change{fmt.Sprintf("add %s to %s with weight %d", real, key, weight), func(k ipvs.Kernel) error { return k.AddReal(key, real, weight) }}
}
