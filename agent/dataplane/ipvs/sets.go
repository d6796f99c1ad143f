package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// SetName is the name of an ipset in the kernel.
type SetName string

// Entry is an entry of an ipset, as the ipset program prints it:
// "10.0.0.1,tcp:80", "10.0.0.1,tcp:80,10.1.0.0/16", "10.0.0.1" or "30000".
type Entry string

// SetType is the kernel's type of an ipset.
type SetType string

// Types of our ipsets.
const (
	HashIP        SetType = "hash:ip"
	HashIPPort    SetType = "hash:ip,port"
	HashIPPortIP  SetType = "hash:ip,port,ip"
	HashIPPortNet SetType = "hash:ip,port,net"
	BitmapPort    SetType = "bitmap:port"
)

// parts is the number of parts of an entry.
func (t SetType) parts() int { return 1 + strings.Count(string(t), ",") }

// SetChange is a change of one ipset.
type SetChange struct {
	Name SetName
	Type SetType
	// Create: the ipset does not exist.
	Create      bool
	Add, Remove []Entry
}

// The ipsets by their names for IPv4. The names are kube-proxy's.
const (
	setLoopBack          = "KUBE-LOOP-BACK"
	setClusterIP         = "KUBE-CLUSTER-IP"
	setExternalIP        = "KUBE-EXTERNAL-IP"
	setExternalIPLocal   = "KUBE-EXTERNAL-IP-LOCAL"
	setLoadBalancer      = "KUBE-LOAD-BALANCER"
	setLoadBalancerLocal = "KUBE-LOAD-BALANCER-LOCAL"
	setLoadBalancerFW    = "KUBE-LOAD-BALANCER-FW"
	setSourceRange       = "KUBE-LOAD-BALANCER-SOURCE-CIDR"
	setSourceIP          = "KUBE-LOAD-BALANCER-SOURCE-IP"
	setNodePortTCP       = "KUBE-NODE-PORT-TCP"
	setNodePortLocalTCP  = "KUBE-NODE-PORT-LOCAL-TCP"
	setNodePortUDP       = "KUBE-NODE-PORT-UDP"
	setNodePortLocalUDP  = "KUBE-NODE-PORT-LOCAL-UDP"
	setNodePortSCTP      = "KUBE-NODE-PORT-SCTP-HASH"
	setNodePortLocalSCTP = "KUBE-NODE-PORT-LOCAL-SCTP-HASH"
	setHealthCheck       = "KUBE-HEALTH-CHECK-NODE-PORT"
	setBound             = "KUBE-IPVS-IPS"
	// setNoLocal and setNoLocalAll are not kube-proxy's. Both have destinations under
	// policy Local that only have endpoints on other nodes. Those in setNoLocal lead
	// there, but only for local pods and the node; those in setNoLocalAll lead nowhere.
	setNoLocal    = "NODEPROXY-NO-LOCAL"
	setNoLocalAll = "NODEPROXY-NO-LOCAL-ALL"
)

// setTypes has all ipsets of the mode, in the order of writing. They exist even if they are empty.
var setTypes = []struct {
	name string
	kind SetType
}{
	{setLoopBack, HashIPPortIP},
	{setClusterIP, HashIPPort},
	{setExternalIP, HashIPPort},
	{setExternalIPLocal, HashIPPort},
	{setLoadBalancer, HashIPPort},
	{setLoadBalancerLocal, HashIPPort},
	{setLoadBalancerFW, HashIPPort},
	{setSourceRange, HashIPPortNet},
	{setSourceIP, HashIPPortIP},
	{setNodePortTCP, BitmapPort},
	{setNodePortLocalTCP, BitmapPort},
	{setNodePortUDP, BitmapPort},
	{setNodePortLocalUDP, BitmapPort},
	{setNodePortSCTP, HashIPPort},
	{setNodePortLocalSCTP, HashIPPort},
	{setHealthCheck, BitmapPort},
	{setBound, HashIP},
	{setNoLocal, HashIPPort},
	{setNoLocalAll, HashIPPort},
}

// nodePortSet has the ipsets of NodePorts of a protocol, and the parts of a packet that
// their rules match.
type nodePortSet struct {
	protocol               v1alpha1.Protocol
	all, local, directions string
}

var nodePortSets = []nodePortSet{
	{v1alpha1.ProtocolTCP, setNodePortTCP, setNodePortLocalTCP, onlyPort},
	{v1alpha1.ProtocolUDP, setNodePortUDP, setNodePortLocalUDP, onlyPort},
	{v1alpha1.ProtocolSCTP, setNodePortSCTP, setNodePortLocalSCTP, destination},
}

// passingSets name the destinations on kube-ipvs0 that virtual servers answer on.
var passingSets = []string{setLoadBalancer, setClusterIP, setExternalIP, setExternalIPLocal}

// SetNames returns the names of all ipsets of the mode in a family.
func SetNames(family dataplane.Family) []SetName {
	out := make([]SetName, len(setTypes))
	for i, s := range setTypes {
		out[i] = setName(family, s.name)
	}
	return out
}

// maxSetName is the kernel's limit for a name, in bytes.
const maxSetName = 31

// setName returns the name of an ipset in a family, given its name for IPv4.
func setName(family dataplane.Family, name string) SetName {
	if family == dataplane.IPv4 {
		return SetName(name)
	}
	prefix, rest, _ := strings.Cut(name, "-")
	name = prefix + "-6-" + rest
	return SetName(name[:min(len(name), maxSetName)])
}

// set returns the name of an ipset in the family, given its name for IPv4.
func (c *config) set(name string) SetName { return setName(c.family, name) }

// passes reports whether an ipset is one of passingSets.
func (c *config) passes(set SetName) bool {
	return slices.ContainsFunc(passingSets, func(name string) bool { return c.set(name) == set })
}

// protocolName is a protocol in iptables rules and entries of ipsets.
func protocolName(p v1alpha1.Protocol) string {
	switch p {
	case v1alpha1.ProtocolUDP:
		return "udp"
	case v1alpha1.ProtocolSCTP:
		return "sctp"
	default:
		return "tcp"
	}
}

// portEntry is an entry of an ipset of type bitmap:port.
func portEntry(port uint16) Entry { return Entry(strconv.Itoa(int(port))) }

// keyEntry is an entry of an ipset of type hash:ip,port.
func keyEntry(k Key) Entry {
	return Entry(k.Addr.String() + "," + protocolName(k.Protocol) + ":" + strconv.Itoa(int(k.Port)))
}

// parseKey reverses keyEntry.
func parseKey(e Entry) (Key, bool) {
	address, rest, _ := strings.Cut(string(e), ",")
	protocol, port, _ := strings.Cut(rest, ":")
	a, err := netip.ParseAddr(address)
	n, portErr := strconv.ParseUint(port, 10, 16)
	return Key{a, uint16(n), v1alpha1.Protocol(strings.ToUpper(protocol))}, err == nil && portErr == nil
}

// keyAndAddress is an entry of an ipset of type hash:ip,port,ip.
func keyAndAddress(k Key, a netip.Addr) Entry { return keyEntry(k) + "," + Entry(a.String()) }

// keyAndRange returns the entries of an ipset of type hash:ip,port,net for a range: one,
// but two halves for the range of all addresses, which such a set does not take.
func keyAndRange(k Key, r netip.Prefix) []Entry {
	entry := keyEntry(k) + ","
	switch {
	case r.IsSingleIP():
		return []Entry{entry + Entry(r.Addr().String())}
	case r.Bits() > 0:
		return []Entry{entry + Entry(r.Masked().String())}
	case r.Addr().Is4():
		return []Entry{entry + "0.0.0.0/1", entry + "128.0.0.0/1"}
	default:
		return []Entry{entry + "::/1", entry + "8000::/1"}
	}
}

// Element is a parsed entry of an ipset. The set's type determines which fields it has.
type Element struct {
	Addr     netip.Addr
	Protocol uint8
	Port     uint16
	// Second is the second address, or network.
	Second  netip.Prefix
	NoMatch bool
}

const noMatchSuffix = " nomatch"

// protocolNames are the protocols that have names in entries.
var protocolNames = map[uint8]string{6: "tcp", 17: "udp", 132: "sctp", 136: "udplite"}

// Entry prints the element as the ipset program does.
func (x Element) Entry(t SetType) Entry {
	var text string
	switch t {
	case BitmapPort:
		text = strconv.Itoa(int(x.Port))
	case HashIP:
		text = x.Addr.String()
	default:
		protocol, named := protocolNames[x.Protocol]
		if !named {
			protocol = strconv.Itoa(int(x.Protocol))
		}
		text = x.Addr.String() + "," + protocol + ":" + strconv.Itoa(int(x.Port))
	}
	switch {
	case t == HashIPPortNet && !x.Second.IsSingleIP():
		text += "," + x.Second.String()
	case t == HashIPPortNet, t == HashIPPortIP:
		text += "," + x.Second.Addr().String()
	}
	if x.NoMatch {
		text += noMatchSuffix
	}
	return Entry(text)
}

// ParseElement parses an entry of a set of the type.
func ParseElement(t SetType, e Entry) (Element, error) {
	text, noMatch := strings.CutSuffix(string(e), noMatchSuffix)
	x := Element{NoMatch: noMatch}
	if err := x.parse(t, strings.Split(text, ",")); err != nil {
		return Element{}, fmt.Errorf("invalid entry %q of an ipset of type %s: %w", e, t, err)
	}
	return x, nil
}

func (x *Element) parse(t SetType, fields []string) (err error) {
	if len(fields) != t.parts() {
		return fmt.Errorf("it has %d parts", len(fields))
	}
	if t == BitmapPort {
		x.Port, err = parsePort(fields[0])
		return err
	}
	if x.Addr, err = parseAddr(fields[0]); err != nil {
		return err
	}
	if len(fields) > 1 {
		if err := x.parsePort(fields[1]); err != nil {
			return err
		}
	}
	if len(fields) > 2 {
		return x.parseSecond(t, fields[2])
	}
	return nil
}

// parsePort parses a port with its protocol, as in tcp:80.
func (x *Element) parsePort(text string) error {
	name, port, found := strings.Cut(text, ":")
	if !found {
		return fmt.Errorf("%q is not a protocol and a port", text)
	}
	for number, known := range protocolNames {
		if name == known {
			x.Protocol = number
		}
	}
	if x.Protocol == 0 {
		number, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			return fmt.Errorf("%q is not a protocol", name)
		}
		x.Protocol = uint8(number)
	}
	var err error
	x.Port, err = parsePort(port)
	return err
}

func (x *Element) parseSecond(t SetType, text string) (err error) {
	if strings.Contains(text, "/") {
		if x.Second, err = netip.ParsePrefix(text); err == nil && t == HashIPPortIP && !x.Second.IsSingleIP() {
			err = fmt.Errorf("%q is a network, not an address", text)
		}
		return err
	}
	addr, err := parseAddr(text)
	if err == nil {
		x.Second = netip.PrefixFrom(addr, addr.BitLen())
	}
	return err
}

// parseAddr parses an address. The kernel's entries have no zones.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err == nil && addr.Zone() != "" {
		err = fmt.Errorf("the address %q has a zone", text)
	}
	return addr, err
}

func parsePort(text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a port", text)
	}
	return uint16(port), nil
}
