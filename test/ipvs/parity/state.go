package parity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/parity/rules"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// state is the kernel state of a proxy in mode ipvs on a node.
type state struct {
	// servers are the virtual servers by protocol, address and port, as ipvsadm
	// takes them: "-t 10.96.0.1:443".
	servers map[string]*server
	// sets are the ipsets by name.
	sets map[string]*set
	// rules are those of iptables.
	rules map[worlds.Family]rules.Rules
	// facts are single lines: addresses and flags of kube-ipvs0, timeouts, sysctls.
	facts []string
}

// server is a virtual server.
type server struct {
	options string   // scheduler, persistence, flags
	reals   []string // with method and weight
}

// set is an ipset.
type set struct {
	kind    string // type and options
	entries []string
}

const (
	sectionMark = "== "
	// serversCommand lists the virtual and real servers.
	serversCommand = "ipvsadm -Sn"
)

// sysctls are those that a proxy in mode ipvs sets, and one that it does not.
func sysctls() []string {
	return []string{
		"net/ipv4/vs/conntrack", "net/ipv4/vs/conn_reuse_mode", "net/ipv4/vs/expire_nodest_conn",
		"net/ipv4/vs/expire_quiescent_template", "net/ipv4/ip_forward",
		"net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce", "net/ipv4/conf/all/route_localnet",
	}
}

// script prints everything in sections, with few programs, which are slow in an emulated kernel.
func script() string {
	var b strings.Builder
	for _, command := range []string{
		serversCommand, "ipvsadm -L --timeout", "ipset save", "iptables-save", "ip6tables-save", "ip -o addr show", "ip -o link show",
	} {
		fmt.Fprintf(&b, "echo '%s%s'; %s || exit 1\n", sectionMark, command, command)
	}
	fmt.Fprintf(&b, "echo '%ssysctls'; cd /proc/sys; while read -r name <&3; do read -r value <$name; echo $name $value; done 3<<END\n%s\nEND\n",
		sectionMark, strings.Join(sysctls(), "\n"))
	return b.String()
}

// read reads the state of a node.
func read(ctx context.Context, node *cluster.Node) (*state, error) {
	sections, err := readSections(ctx, node)
	if err != nil {
		return nil, err
	}
	return parse(sections)
}

// readSections reads the input of parse. Addresses that only this node has are replaced by the name
// of their interface.
func readSections(ctx context.Context, node *cluster.Node) (map[string][]string, error) {
	text, err := node.Exec(ctx, "sh", "-c", script())
	if err != nil {
		return nil, err
	}
	sections := map[string][]string{}
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, is := strings.CutPrefix(line, sectionMark); is {
			section = name
			continue
		}
		if line != "" {
			sections[section] = append(sections[section], line)
		}
	}
	own := ownAddresses(sections["ip -o addr show"])
	for name, lines := range sections {
		for i := range lines {
			sections[name][i] = own.Replace(lines[i])
		}
	}
	return sections, nil
}

// readServers reads only the virtual and real servers of a node.
func readServers(ctx context.Context, node *cluster.Node) (*state, error) {
	text, err := node.Exec(ctx, "ipvsadm", "-Sn")
	if err != nil {
		return nil, err
	}
	return parse(map[string][]string{serversCommand: strings.Split(strings.TrimSpace(text), "\n")})
}

// ownAddresses replaces addresses of interfaces that differ from node to node.
func ownAddresses(lines []string) *strings.Replacer {
	var pairs []string
	for _, line := range lines { // 2: eth0    inet 172.20.0.11/24 scope …
		words := strings.Fields(line)
		if len(words) < 4 || words[1] != "eth0" && words[1] != "cni0" {
			continue
		}
		address, _, _ := strings.Cut(words[3], "/")
		name := words[1] + "-" + words[2]
		pairs = append(pairs, " "+address+":", " "+name+":", "["+address+"]:", "["+name+"]:", " "+address+",", " "+name+",")
	}
	return strings.NewReplacer(pairs...)
}

func parse(sections map[string][]string) (*state, error) {
	s := &state{servers: map[string]*server{}, sets: map[string]*set{}, rules: map[worlds.Family]rules.Rules{}}
	for _, line := range sections[serversCommand] {
		if err := s.addServer(line); err != nil {
			return nil, fmt.Errorf("reading ipvsadm, line %q: %w", line, err)
		}
	}
	for _, line := range sections["ipset save"] {
		if err := s.addSet(line); err != nil {
			return nil, fmt.Errorf("reading ipset, line %q: %w", line, err)
		}
	}
	for f, name := range map[worlds.Family]string{worlds.IPv4: "iptables-save", worlds.IPv6: "ip6tables-save"} {
		parsed, err := rules.Parse(strings.Join(sections[name], "\n") + "\n")
		if err != nil {
			return nil, err
		}
		s.rules[f] = parsed
	}
	for _, line := range sections["ip -o addr show"] {
		if words := strings.Fields(line); len(words) > 3 && words[1] == device {
			s.facts = append(s.facts, device+" has "+words[3])
		}
	}
	for _, line := range sections["ip -o link show"] { // 5: kube-ipvs0: <BROADCAST,NOARP> mtu …
		if words := strings.Fields(line); len(words) > 2 && words[1] == device+":" {
			s.facts = append(s.facts, device+" is "+words[2])
		}
	}
	s.facts = append(s.facts, slices.Concat(sections["ipvsadm -L --timeout"], sections["sysctls"])...)
	for _, v := range s.servers {
		slices.Sort(v.reals)
	}
	for _, v := range s.sets {
		slices.Sort(v.entries)
	}
	slices.Sort(s.facts)
	return s, nil
}

const device = "kube-ipvs0"

// addServer reads a line such as "-A -t 10.96.0.1:443 -s rr" or "-a -t 10.96.0.1:443
// -r 10.244.1.2:8443 -m -w 1".
func (s *state) addServer(line string) error {
	words := strings.Fields(line)
	if len(words) < 4 {
		return errors.New("it is too short")
	}
	key, rest := words[1]+" "+words[2], strings.Join(words[3:], " ")
	switch {
	case words[0] == "-A":
		s.servers[key] = &server{options: rest}
	case words[0] == "-a" && s.servers[key] != nil:
		s.servers[key].reals = append(s.servers[key].reals, rest)
	default:
		return errors.New("-A, or -a and a known virtual server, are expected")
	}
	return nil
}

// addSet reads a line such as "create KUBE-CLUSTER-IP hash:ip,port family inet …" or
// "add KUBE-CLUSTER-IP 10.96.0.1,tcp:443". The kernel chooses initval and hashsize.
func (s *state) addSet(line string) error {
	words := strings.Fields(line)
	switch {
	case len(words) > 2 && words[0] == "create":
		for _, option := range []string{"initval", "hashsize"} {
			if i := slices.Index(words, option); i > 0 && i+2 <= len(words) {
				words = slices.Delete(words, i, i+2)
			}
		}
		s.sets[words[1]] = &set{kind: strings.Join(words[2:], " ")}
	case len(words) > 2 && words[0] == "add" && s.sets[words[1]] != nil:
		s.sets[words[1]].entries = append(s.sets[words[1]].entries, strings.Join(words[2:], " "))
	default:
		return errors.New("create, or add and a known set, are expected")
	}
	return nil
}

// marked reports whether the virtual server of a mark exists.
func (s *state) marked(m worlds.Mark, f worlds.Family) bool {
	address, endpoint := worlds.MarkerAddress(f), worlds.MarkerEndpoint(f)
	if f == worlds.IPv6 {
		address, endpoint = "["+address+"]", "["+endpoint+"]"
	}
	v := s.servers[fmt.Sprintf("-t %s:%d", address, m.Port)]
	return v != nil && slices.Contains(v.reals, fmt.Sprintf("-r %s:%d -m -w 1", endpoint, m.EndpointPort))
}
