package iptablesmodel

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

const (
	maxChainName = 28
	maxComment   = 255
)

// verdict is what the target of a rule does.
type verdict int

const (
	none verdict = iota // the next rule
	jump
	goBack // RETURN
	setMark
	accept
	drop
	reject
	translate // DNAT
	masquerade
)

var targets = map[string]verdict{
	kernelmodel.Return: goBack, "MARK": setMark, kernelmodel.Accept: accept, kernelmodel.Drop: drop, kernelmodel.Reject: reject,
	kernelmodel.Translate: translate, kernelmodel.Masquerade: masquerade,
}

type rule struct {
	text    string
	matches map[string]match // by option; -m alone is not among them
	modules []string

	verdict  verdict
	target   string // a chain, with jump
	endpoint netip.AddrPort
	and, xor uint32 // with setMark: mark&and^xor
}

// leadsTo is the target's name; empty: none, or one that lets packets go on.
func (r *rule) leadsTo() string {
	switch r.verdict {
	case none, setMark:
		return ""
	case jump:
		return r.target
	}
	for name, v := range targets {
		if v == r.verdict {
			return name
		}
	}
	return ""
}

// match is an option of a match with its value.
type match struct {
	not   bool
	value string

	prefix      netip.Prefix
	number      uint64
	mask        uint32
	probability float64
	list        []string
}

// same reports whether two rules are one for iptables -D.
func (r *rule) same(o *rule) bool {
	return r.verdict == o.verdict && r.target == o.target && r.endpoint == o.endpoint &&
		r.and == o.and && r.xor == o.xor && slices.Equal(r.modules, o.modules) && reflect.DeepEqual(r.matches, o.matches)
}

// parseRule reads a rule as iptables-restore does, without "-A CHAIN". It fails
// for anything that this package cannot evaluate.
func parseRule(text string) (*rule, error) {
	words, err := splitWords(text)
	if err != nil {
		return nil, err
	}
	p := &parser{words: words, rule: &rule{text: text, matches: map[string]match{}, and: math.MaxUint32}}
	for len(p.words) > 0 {
		if err := p.option(); err != nil {
			return nil, err
		}
	}
	return p.rule, p.check()
}

func splitWords(text string) ([]string, error) {
	var words []string
	for text = strings.TrimLeft(text, " "); text != ""; text = strings.TrimLeft(text, " ") {
		if text[0] != '"' {
			word, rest, _ := strings.Cut(text, " ")
			words, text = append(words, word), rest
			continue
		}
		word, rest, ok := strings.Cut(text[1:], `"`)
		if !ok || strings.Contains(word, `\`) {
			return nil, fmt.Errorf("cannot read the quotes of: %s", text)
		}
		words, text = append(words, word), rest
	}
	return words, nil
}

type parser struct {
	words []string
	rule  *rule
	named bool // a target
}

func (p *parser) next() (string, error) {
	if len(p.words) == 0 {
		return "", fmt.Errorf("a value is missing at the end")
	}
	word := p.words[0]
	p.words = p.words[1:]
	return word, nil
}

func (p *parser) option() error {
	name, err := p.next()
	if err != nil {
		return err
	}
	not := name == "!"
	if not {
		if name, err = p.next(); err != nil {
			return err
		}
	}
	if not && (name == "-j" || name == "-m" || name == "--set") {
		return fmt.Errorf("unknown option ! %s", name)
	}
	switch name {
	case "-j":
		p.named = true
		return p.target()
	case "-m":
		module, err := p.next()
		p.rule.modules = append(p.rule.modules, module)
		return err
	case "--to-destination", "--or-mark", "--xor-mark", "--set-xmark", "--random-fully", "--reject-with":
		return p.targetOption(name, not)
	}
	m := match{not: not}
	if !slices.Contains([]string{"--reap", "--rcheck", "--set", "--rsource", "--physdev-is-in"}, name) {
		if m.value, err = p.next(); err != nil {
			return err
		}
	}
	if name == "--match-set" {
		directions, err := p.next()
		if err == nil {
			m.list, err = readDirections(directions)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := m.read(name); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, twice := p.rule.matches[name]; twice {
		return fmt.Errorf("%s is there twice", name)
	}
	p.rule.matches[name] = m
	return nil
}

func (p *parser) target() error {
	name, err := p.next()
	if err != nil {
		return err
	}
	if v, ok := targets[name]; ok {
		p.rule.verdict = v
		return nil
	}
	if name == "" || strings.HasPrefix(name, "-") || len(name) > maxChainName {
		return fmt.Errorf("bad target %q", name)
	}
	p.rule.verdict, p.rule.target = jump, name
	return nil
}

// targetOption reads an option of a target, which must be named before.
func (p *parser) targetOption(name string, not bool) error {
	owner := map[string]verdict{
		"--to-destination": translate, "--random-fully": masquerade, "--reject-with": reject,
		"--or-mark": setMark, "--xor-mark": setMark, "--set-xmark": setMark,
	}[name]
	if not || p.rule.verdict != owner {
		return fmt.Errorf("%s does not belong to the target", name)
	}
	if name == "--random-fully" {
		return nil
	}
	value, err := p.next()
	if err != nil {
		return err
	}
	switch name {
	case "--to-destination":
		p.rule.endpoint, err = netip.ParseAddrPort(value)
	case "--reject-with":
		if value != "icmp-port-unreachable" && value != "icmp6-port-unreachable" {
			err = fmt.Errorf("unknown kind %s", value)
		}
	default:
		var v, mask uint64
		if v, mask, err = readMark(value); err != nil {
			break
		}
		p.rule.xor = uint32(v)
		switch name {
		case "--or-mark": // bits that are cleared and then flipped are set
			p.rule.and = ^uint32(v)
		case "--set-xmark":
			p.rule.and = ^uint32(mask)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// modules are the matches with those of their options that need -m.
var modules = map[string][]string{
	"comment": {"--comment"}, "conntrack": {"--ctstate"}, "mark": {"--mark"},
	"addrtype": {"--src-type", "--dst-type"}, "statistic": {"--probability", "--mode"},
	"recent": {"--rcheck", "--set", "--name"}, "set": {"--match-set"}, "physdev": {"--physdev-is-in"},
	"ipvs": {"--vaddr", "--vproto", "--vport"},
}

// check compares the parts of a rule to each other.
func (p *parser) check() error {
	r := p.rule
	has := func(option string) bool { _, ok := r.matches[option]; return ok }
	for module, options := range modules {
		for _, option := range options {
			if has(option) && !slices.Contains(r.modules, module) {
				return fmt.Errorf("%s without -m %s", option, module)
			}
		}
	}
	for _, module := range r.modules {
		switch module {
		case "tcp", "udp", "sctp":
			if r.matches["-p"].value != module || r.matches["-p"].not {
				return fmt.Errorf("-m %s without -p %s", module, module)
			}
		default:
			if modules[module] == nil {
				return fmt.Errorf("unknown match %s", module)
			}
		}
	}
	switch {
	case has("--dport") && !slices.Contains(r.modules, r.matches["-p"].value):
		return fmt.Errorf("--dport without -p and -m of its protocol")
	case has("--mode") != has("--probability"), has("--mode") && r.matches["--mode"].value != "random":
		return fmt.Errorf("unknown mode of statistic")
	case slices.Contains(r.modules, "recent") && (has("--rcheck") == has("--set") || !has("--name")):
		return fmt.Errorf("recent needs a name and one of --rcheck and --set")
	case has("--set") && !r.remembersLast():
		return fmt.Errorf("recent --set before another match: clients are remembered even where that fails")
	case r.verdict == translate && !r.endpoint.IsValid():
		return fmt.Errorf("DNAT without --to-destination")
	case r.verdict == translate && (!has("-p") || r.matches["-p"].not):
		return fmt.Errorf("DNAT to a port without a protocol")
	}
	slices.Sort(r.modules)
	return nil
}

// remembersLast reports whether no match that may fail comes after recent: the kernel
// asks them in the order in which they were written, and stops at the first that fails.
func (r *rule) remembersLast() bool {
	_, port := r.matches["--dport"]
	for _, module := range r.modules[slices.Index(r.modules, "recent")+1:] {
		if module != "comment" && (module != r.matches["-p"].value || port) {
			return false
		}
	}
	return true
}

func (m *match) read(option string) error {
	var err error
	switch option {
	case "--comment":
		if len(m.value) > maxComment {
			return fmt.Errorf("the comment has %d bytes, at most %d are allowed", len(m.value), maxComment)
		}
	case "-p", "--mode", "--name", "--reap", "--rcheck", "--set", "--rsource", "--mask", "-i", "--match-set", "--physdev-is-in", "--vproto":
	case "-s", "-d", "--vaddr":
		if m.prefix, err = netip.ParsePrefix(m.value); err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(m.value); err == nil {
				m.prefix = netip.PrefixFrom(a, a.BitLen())
			}
		}
		m.prefix, m.value = m.prefix.Masked(), ""
	case "--dport", "--seconds", "--vport":
		m.number, err = strconv.ParseUint(m.value, 10, 32)
		if option != "--seconds" && (m.number == 0 || m.number > math.MaxUint16) {
			err = fmt.Errorf("no port: %s", m.value)
		}
	case "--ctstate":
		m.list = strings.Split(m.value, ",")
		slices.Sort(m.list)
		m.value = ""
		for _, s := range m.list {
			if !slices.Contains([]string{"NEW", "INVALID", "ESTABLISHED", "RELATED", "DNAT"}, s) {
				return fmt.Errorf("unknown state %s", s)
			}
		}
	case "--mark":
		var mask uint64
		m.number, mask, err = readMark(m.value)
		m.mask, m.value = uint32(mask), ""
	case "--src-type", "--dst-type":
		if m.value != "LOCAL" {
			return fmt.Errorf("unknown type %s", m.value)
		}
	case "--probability":
		if m.probability, err = strconv.ParseFloat(m.value, 64); err == nil {
			// The kernel counts in units of 2^-31.
			m.probability = math.Round(m.probability*(1<<31)) / (1 << 31)
			m.value = ""
		}
		if m.probability <= 0 || m.probability > 1 {
			return fmt.Errorf("no probability: %s", m.value)
		}
	default:
		return fmt.Errorf("unknown option")
	}
	return err
}

func readMark(text string) (value, mask uint64, err error) {
	v, m, masked := strings.Cut(text, "/")
	if value, err = strconv.ParseUint(v, 0, 32); err != nil {
		return 0, 0, err
	}
	if !masked {
		return value, math.MaxUint32, nil
	}
	mask, err = strconv.ParseUint(m, 0, 32)
	return value, mask, err
}
