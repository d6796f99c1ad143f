package iptables

import (
	"math"
	"strconv"
	"strings"
)

// Rules are compared by a hash of what they mean, because iptables-save prints
// other text than what was written: it reorders matches, completes masks and
// defaults, and rounds probabilities. What does not decide about packets does not
// count: comments, counters, the order of a rule's options.

const (
	fnvOffset uint64 = 14695981039346656037
	fnvPrime  uint64 = 1099511628211
)

func hashString(h uint64, s string) uint64 {
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

// mix spreads the bits of a hash, so that sums of hashes stay distinct.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// chainRule folds the hash of one more rule into the hash of a chain, in which
// the order of rules counts.
func chainRule(chain, rule uint64) uint64 { return mix(chain*fnvPrime + rule) }

// hashOf is the hash of a chain with these rules.
func hashOf(specs []string) uint64 {
	var hash uint64
	for _, spec := range specs {
		hash = chainRule(hash, ruleHash(spec))
	}
	return hash
}

// ruleHash is the hash of what a rule means. The rule is written as
// iptables-restore reads it or iptables-save prints it, without "-A CHAIN".
func ruleHash(spec string) uint64 { return mix(optionsHash(spec)) }

// optionsHash is the sum of what options contribute to the hash of their rule: that of a rule is the
// sum of its parts'.
func optionsHash(spec string) uint64 {
	t := tokens{rest: spec}
	var sum uint64
	negated := false
	for {
		token, ok := t.next()
		if !ok {
			return sum
		}
		if token == "!" {
			negated = true
			continue
		}
		sum += optionHash(token, negated, &t)
		negated = false
	}
}

// optionHash reads an option's values and returns what the option contributes
// to the hash: 0 for what does not matter.
func optionHash(option string, negated bool, t *tokens) uint64 {
	if option == "--comment" {
		t.next() // it has no effect, and may look like an option
		return 0
	}
	value, _ := t.value()
	switch option {
	case "-m", "--match":
		switch value {
		case "comment", "nfacct", "tcp", "udp", "sctp": // without effect, or implied by -p
			return 0
		}
	case "--rsource", "--nfacct-name": // kube-proxy counts packets with the latter
		return 0
	case "--reject-with":
		if value == "icmp-port-unreachable" || value == "icmp6-port-unreachable" {
			return 0
		}
	case "--mask":
		if value == "255.255.255.255" || value == "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff" {
			return 0
		}
	case "-s", "--source", "-d", "--destination":
		return addressHash(option, value, negated)
	case "--or-mark":
		return partHash("--set-xmark", negated, value, "/", value)
	case "--xor-mark":
		return partHash("--set-xmark", negated, value, "/0x0")
	case "--probability":
		return partHash(option, negated, probability(value))
	case "--ctstate":
		return partHash(option, negated) + setHash(value)
	case "--vproto":
		return partHash(option, negated, protocolNumber(value))
	case "--vaddr":
		return addressHash(option, value, negated)
	}
	h := partHash(option, negated, value)
	for {
		more, ok := t.value()
		if !ok {
			return h
		}
		h = mix(hashString(h, more))
	}
}

func partHash(option string, negated bool, values ...string) uint64 {
	h := hashString(fnvOffset, option)
	if negated {
		h = hashString(h, "!")
	}
	h = hashString(h, " ")
	for _, v := range values {
		h = hashString(h, v)
	}
	return mix(h)
}

func addressHash(option, value string, negated bool) uint64 {
	short := option
	switch option {
	case "--source":
		short = "-s"
	case "--destination":
		short = "-d"
	}
	switch {
	case strings.IndexByte(value, '/') >= 0:
		return partHash(short, negated, value)
	case strings.IndexByte(value, ':') >= 0:
		return partHash(short, negated, value, "/128")
	default:
		return partHash(short, negated, value, "/32")
	}
}

// protocolNumber is a protocol as the kernel stores it.
func protocolNumber(value string) string {
	switch strings.ToLower(value) {
	case "tcp":
		return "6"
	case "udp":
		return "17"
	case "sctp":
		return "132"
	default:
		return value
	}
}

// probability is a probability as the kernel stores it, in units of 2^-31.
func probability(value string) string {
	p, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return value
	}
	return strconv.FormatInt(int64(math.Round(p*(1<<31))), 10)
}

// setHash hashes a comma-separated list whose order does not matter.
func setHash(list string) uint64 {
	var sum uint64
	for len(list) > 0 {
		item, rest, _ := strings.Cut(list, ",")
		sum += mix(hashString(fnvOffset, item))
		list = rest
	}
	return sum
}

// tokens splits a rule into words. Quoted words may hold spaces and escaped
// quotes; their quotes are taken off.
type tokens struct {
	rest string
}

func (t *tokens) next() (string, bool) {
	s := strings.TrimLeft(t.rest, " ")
	if s == "" {
		t.rest = ""
		return "", false
	}
	if s[0] == '"' {
		for i := 1; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case '"':
				t.rest = s[i+1:]
				return s[1:i], true
			}
		}
	}
	word, rest, _ := strings.Cut(s, " ")
	t.rest = rest
	return word, true
}

// value returns the next word if it is a value and not the next option.
func (t *tokens) value() (string, bool) {
	s := strings.TrimLeft(t.rest, " ")
	if s == "" || s[0] == '-' || s == "!" || strings.HasPrefix(s, "! ") {
		return "", false
	}
	return t.next()
}

func comment(spec string) string {
	t := tokens{rest: spec}
	for {
		word, ok := t.next()
		if !ok {
			return ""
		}
		if word == "--comment" {
			value, _ := t.next()
			return value
		}
	}
}

func jumpTarget(spec string) (string, bool) {
	t := tokens{rest: spec}
	for word, ok := t.next(); ok; word, ok = t.next() {
		switch word {
		case "--comment":
			t.next() // which may look like an option
		case "-j", "-g":
			return t.value()
		}
	}
	return "", false
}
