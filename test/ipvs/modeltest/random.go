package modeltest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// Random draws rule sets, of all that the model knows but ipsets and IPVS unless Matches
// has them, packets for them, and what a node has of IPVS.
type Random struct {
	*rand.Rand
	Six bool
	// SCTP: packets may be SCTP's. See Lab.SCTP.
	SCTP bool
	// Matches are more of what rules may match: "-m module %s--option value", where %s is
	// for a negation.
	Matches []string
	// Few: there are few rules, so that most packets get through, and among them one
	// that masquerades some and two that stop some.
	Few bool
	// Chance: rules match with some probability, and clients are not remembered.
	Chance bool

	set int
}

func draw[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

func (r *Random) likely(percent int) bool { return r.IntN(100) < percent }

func (r *Random) pick(four, six string) string {
	if r.Six {
		return six
	}
	return four
}

func (r *Random) outside() string {
	return r.pick(draw(r.Rand, "203.0.113.2", "203.0.113.3", "198.51.100.7"), draw(r.Rand, "2001:db8:1::2", "2001:db8:1::3", "2001:db8:2::7"))
}

func (r *Random) virtual() string {
	return r.pick(draw(r.Rand, "10.96.0.1", "10.96.0.2"), draw(r.Rand, "fd00:96::1", "fd00:96::2"))
}

func (r *Random) remote() string {
	return r.pick(draw(r.Rand, "10.180.0.7", "10.180.0.8"), draw(r.Rand, "fd00:180::7", "fd00:180::8"))
}

func (r *Random) node() string { return draw(r.Rand, Node(r.Six)...).String() }

func (r *Random) port() int { return draw(r.Rand, 53, 80, 8080, 30080) }

// Packet draws a packet.
func (r *Random) Packet() kernelmodel.Packet {
	p := kernelmodel.Packet{
		Protocol: draw(r.Rand, "tcp", "udp", "udp", "sctp"), In: draw(r.Rand, "", "eth0", "cni0"), State: draw(r.Rand, "", "", "", "", established, invalid),
	}
	if p.Protocol == "sctp" && !r.SCTP {
		p.Protocol = "tcp"
	}
	p.Bridged = p.In == "cni0"
	switch {
	case p.In == "":
		p.Source = netip.MustParseAddr(r.node())
		if p.State == invalid {
			p.State = ""
		}
	case p.Bridged && r.likely(60):
		p.Source = Pod(r.Six)
	default:
		p.Source = netip.MustParseAddr(r.outside())
	}
	to := []string{r.virtual(), r.virtual(), r.remote()}
	switch p.State {
	case established:
		p.Protocol = "udp"
	case invalid:
		p.Protocol = "tcp"
		fallthrough
	default:
		to = append(to, r.node(), r.node())
	}
	p.Destination = netip.AddrPortFrom(netip.MustParseAddr(draw(r.Rand, to...)), uint16(r.port())) //nolint:gosec // a port
	return p
}

// ruleSet is what is drawn so far.
type ruleSet struct {
	*Random
	strings.Builder
}

// RuleSet draws the input of iptables-restore --noflush.
func (r *Random) RuleSet() string {
	r.set++
	s := &ruleSet{Random: r}
	s.WriteString("*nat\n")
	for _, name := range []string{"D1", "D2", "D3", "S1", "S2"} {
		fmt.Fprintf(s, ":%s - [0:0]\n", name)
	}
	both := []string{"", "RETURN", "MARK", "ACCEPT"}
	destination := append([]string{"DNAT", "DNAT", "DNAT", "DNAT"}, both...)
	s.chain("PREROUTING", destination, "D1", "D2", "D3")
	s.chain("OUTPUT", destination, "D1", "D2", "D3")
	s.chain("D1", destination, "D2", "D3")
	s.chain("D2", destination, "D3")
	s.chain("D3", destination)
	source := append([]string{"MASQUERADE", "MASQUERADE"}, both...)
	if s.Few {
		s.rule("POSTROUTING", "MASQUERADE")
	}
	s.chain("POSTROUTING", source, "S1", "S2")
	s.chain("S1", source, "S2")
	s.chain("S2", source)
	s.WriteString("COMMIT\n*filter\n:F1 - [0:0]\n:F2 - [0:0]\n")
	filter := append([]string{"DROP", "REJECT"}, both...)
	for _, name := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		s.chain(name, filter, "F1", "F2")
	}
	if s.Few {
		s.rule("OUTPUT", draw(s.Rand, "DROP", "REJECT"))
		s.rule(draw(s.Rand, "INPUT", "FORWARD"), draw(s.Rand, "DROP", "REJECT"))
	}
	s.chain("F1", filter, "F2")
	s.chain("F2", filter)
	s.WriteString("COMMIT\n")
	return Tag(s.String())
}

// chain draws the rules of a chain.
func (s *ruleSet) chain(name string, targets []string, jumps ...string) {
	rules := 1 + s.IntN(4)
	if s.Few {
		rules = s.IntN(2)
	}
	for range rules {
		target := draw(s.Rand, targets...)
		if len(jumps) > 0 && s.likely(35) {
			target = draw(s.Rand, jumps...)
		}
		s.rule(name, target)
	}
}

func (s *ruleSet) rule(chain, target string) {
	conditions := s.conditions(chain, target == "DNAT")
	for s.Few && conditions == "" && (target == "DROP" || target == "REJECT") { // that would be all
		conditions = s.conditions(chain, false)
	}
	fmt.Fprintf(s, "-A %s%s%s\n", chain, conditions, s.target(target))
}

func (s *ruleSet) target(name string) string {
	switch name {
	case "":
		return ""
	case "MARK":
		return " -j MARK " + draw(s.Rand, "--or-mark 0x4000", "--or-mark 0x8000", "--xor-mark 0x4000", "--set-xmark 0x4000/0x4000", "--set-xmark 0x0/0xc000", "--set-xmark 0x1")
	case "DNAT":
		address := draw(s.Rand, s.remote(), s.remote(), s.remote(), s.node())
		return fmt.Sprintf(" -j DNAT --to-destination %s", netip.AddrPortFrom(netip.MustParseAddr(address), uint16(s.port()))) //nolint:gosec // a port
	case "MASQUERADE":
		return " -j MASQUERADE" + draw(s.Rand, "", " --random-fully")
	}
	return " -j " + name
}

// conditions draws what a rule matches, each option at most once. DNAT needs a protocol,
// and few other options, or no packet would meet it.
func (s *ruleSet) conditions(chain string, dnat bool) string {
	var out strings.Builder
	often, seldom := 20, 15
	if dnat {
		often, seldom = 8, 5
	}
	not := func() string { return draw(s.Rand, "", "", "! ") }
	if s.likely(often) {
		fmt.Fprintf(&out, " %s-s %s", not(), s.prefix(s.outside(), s.node(), Pod(s.Six).String()))
	}
	if s.likely(often) {
		fmt.Fprintf(&out, " %s-d %s", not(), s.prefix(s.virtual(), s.remote(), s.node()))
	}
	if chain != "OUTPUT" && chain != "POSTROUTING" && s.likely(seldom) {
		fmt.Fprintf(&out, " %s-i %s", not(), draw(s.Rand, "eth0", "cni0", "cni+", "e+", "lo", "eth"))
	}
	name := draw(s.Rand, "tcp", "udp", "udp", "sctp")
	port, named := s.likely(seldom), s.likely(seldom)
	switch {
	case port:
		fmt.Fprintf(&out, " -m %s -p %s %s--dport %d", name, name, not(), s.port())
	case dnat:
		fmt.Fprintf(&out, " -p %s", name)
	case named:
		fmt.Fprintf(&out, " %s-p %s", not(), name)
	}
	if s.likely(seldom) {
		fmt.Fprintf(&out, " -m conntrack %s--ctstate %s", not(), draw(s.Rand, "NEW", "INVALID", "RELATED,ESTABLISHED", "DNAT", "NEW,DNAT", "INVALID,ESTABLISHED"))
	}
	if s.likely(seldom) {
		fmt.Fprintf(&out, " -m mark %s--mark %s", not(), draw(s.Rand, "0x4000/0x4000", "0x8000/0x8000", "0x0/0xc000", "0x4000", "0x1", "0x0"))
	}
	if s.likely(seldom) {
		fmt.Fprintf(&out, " -m addrtype %s--%s-type LOCAL", not(), draw(s.Rand, "src", "dst"))
	}
	if chain != "OUTPUT" && chain != "POSTROUTING" && s.likely(5) {
		fmt.Fprintf(&out, " -m physdev %s--physdev-is-in", not())
	}
	if len(s.Matches) > 0 && s.likely(2*seldom) {
		out.WriteString(" " + fmt.Sprintf(draw(s.Rand, s.Matches...), not()))
	}
	switch {
	case s.Chance && s.likely(30):
		fmt.Fprintf(&out, " -m statistic --mode random --probability %s", draw(s.Rand, "0.5", "0.3333333333", "0.1", "1"))
	case !s.Chance && s.likely(seldom):
		list := fmt.Sprintf("%s%d", draw(s.Rand, "A", "B"), s.set)
		fmt.Fprintf(&out, " -m recent --name %s %s", list,
			draw(s.Rand, "--set", "--set --rsource", "--rcheck", "--rcheck --seconds 10800 --reap", "! --rcheck --seconds 600"))
	}
	return out.String()
}

// prefix draws one of the networks of some addresses.
func (s *ruleSet) prefix(addresses ...string) string {
	a := netip.MustParseAddr(draw(s.Rand, addresses...))
	bits := draw(s.Rand, a.BitLen(), a.BitLen(), a.BitLen()-1, a.BitLen()/2, 8, 1)
	return netip.PrefixFrom(a, bits).String()
}
