package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Key names a chain within a table.
type Key struct{ Table, Chain string }

func (k Key) String() string { return k.Table + " " + k.Chain }

// Rule is one rule, taken apart so that two ways to write one rule are equal.
type Rule struct {
	// Matches are the matches with their options, sorted: their order within a
	// rule has no meaning.
	Matches []string
	// Target is what follows -j, with its options; empty when there is none.
	Target string
	// Comment is kept apart, because it has no effect; Compared is the part of it that
	// is compared.
	Comment, Compared string
	// Text is the rule as iptables-save printed it.
	Text string
}

// Meaning is the same for all rules that do the same.
func (r Rule) Meaning() string { return strings.Join(r.Matches, " ") + " => " + r.Target }

// Jump is the chain or target that the rule leads to.
func (r Rule) Jump() string {
	name, _, _ := strings.Cut(r.Target, " ")
	return name
}

// Chain is a chain with its rules in order.
type Chain struct {
	Policy string // of a built-in chain; "-" of others
	Rules  []Rule
}

// BuiltIn reports whether the chain is one of the kernel's.
func (c *Chain) BuiltIn() bool { return c.Policy != "-" }

// Silence lets the comments of a chain not count.
func (c *Chain) Silence() {
	for i := range c.Rules {
		c.Rules[i].Compared = ""
	}
}

// Rules are all chains of one program and family.
type Rules map[Key]*Chain

// DropUnusedTables removes the tables without rules, but for nat and filter: whether they
// exist depends on what a program has listed.
func (r Rules) DropUnusedTables() {
	used := map[string]bool{"filter": true, "nat": true}
	for k, c := range r {
		if !c.BuiltIn() || len(c.Rules) > 0 || c.Policy != "ACCEPT" {
			used[k.Table] = true
		}
	}
	for k := range r {
		if !used[k.Table] {
			delete(r, k)
		}
	}
}

// Parse reads what iptables-save prints. What it does not know is an error, so
// that nothing is passed over.
func Parse(save string) (Rules, error) {
	out := Rules{}
	table := ""
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		var err error
		switch {
		case line == "" || line[0] == '#':
		case line == "COMMIT":
			table = ""
		case line[0] == '*':
			table = line[1:]
		case table == "":
			err = errors.New("it is in no table")
		case line[0] == ':':
			err = out.declare(table, line)
		default:
			err = out.add(table, line)
		}
		if err != nil {
			return nil, fmt.Errorf("reading iptables-save, line %q: %w", line, err)
		}
	}
	return out, nil
}

// declare reads a line such as ":KUBE-SERVICES - [0:0]".
func (r Rules) declare(table, line string) error {
	words := strings.Fields(line[1:])
	if len(words) < 2 {
		return errors.New("a chain and its policy are expected")
	}
	r[Key{table, words[0]}] = &Chain{Policy: words[1]}
	return nil
}

// add reads a line such as "-A KUBE-SERVICES … -j KUBE-NODEPORTS".
func (r Rules) add(table, line string) error {
	words, err := split(line)
	if err != nil {
		return err
	}
	if len(words) < 2 || words[0].text != "-A" {
		return errors.New("-A and a chain are expected")
	}
	in := r[Key{table, words[1].text}]
	if in == nil {
		return errors.New("its chain is not declared")
	}
	parsed, err := parseRule(words[2:])
	if err != nil {
		return err
	}
	parsed.Text = line
	in.Rules = append(in.Rules, parsed)
	return nil
}

// word is a word of a rule. A quoted one is never an option.
type word struct {
	text   string
	quoted bool
}

func (w word) option() bool {
	return !w.quoted && (w.text == "!" || len(w.text) > 1 && w.text[0] == '-')
}

// split cuts a line at spaces outside double quotes; a backslash takes the
// meaning of what follows it away.
func split(line string) ([]word, error) {
	var out []word
	var current strings.Builder
	inWord, inQuotes, quoted := false, false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\\' && i+1 < len(line):
			i++
			current.WriteByte(line[i])
			inWord = true
		case c == '"':
			inQuotes = !inQuotes
			inWord, quoted = true, true
		case c == ' ' && !inQuotes:
			if inWord {
				out = append(out, word{current.String(), quoted})
				current.Reset()
				inWord, quoted = false, false
			}
		default:
			current.WriteByte(c)
			inWord = true
		}
	}
	if inQuotes {
		return nil, errors.New("a quote is not closed")
	}
	if inWord {
		out = append(out, word{current.String(), quoted})
	}
	return out, nil
}

// parseRule sorts the options of a rule by the match that they belong to.
func parseRule(words []word) (Rule, error) {
	var out Rule
	options, err := options(words)
	if err != nil {
		return out, err
	}
	module := "" // of the -m seen last
	var of []string
	flush := func() {
		if module != "" {
			slices.Sort(of)
			out.Matches = append(out.Matches, strings.Join(append([]string{"-m " + module}, of...), " "))
		}
		module, of = "", nil
	}
	for i, o := range options {
		switch {
		case o.name == "-j" || o.name == "-g":
			flush()
			rest := []string{o.value}
			for _, o := range options[i+1:] {
				rest = append(rest, o.String())
			}
			slices.Sort(rest[1:])
			out.Target = strings.Join(rest, " ")
			if o.name == "-g" {
				out.Target = "goto " + out.Target
			}
			slices.Sort(out.Matches)
			return out, nil
		case o.name == "-m":
			flush()
			module = o.value
		case o.name == "--comment" && module == "comment":
			out.Comment, out.Compared, module = o.value, o.value, ""
		case strings.HasPrefix(o.name, "--"):
			if module == "" {
				return out, fmt.Errorf("%s belongs to no match", o.name)
			}
			of = append(of, o.String())
		default: // -s, -d, -i, -o, -p
			flush()
			out.Matches = append(out.Matches, o.String())
		}
	}
	flush()
	slices.Sort(out.Matches)
	return out, nil
}

// option is an option with its arguments.
type option struct {
	not         bool
	name, value string
}

func (o option) String() string {
	text := strings.TrimSpace(o.name + " " + o.value)
	if o.not {
		return "! " + text
	}
	return text
}

func options(words []word) ([]option, error) {
	var out []option
	not := false
	for _, w := range words {
		switch {
		case w.option() && w.text == "!":
			not = true
		case w.option():
			out = append(out, option{not: not, name: w.text})
			not = false
		case len(out) == 0:
			return nil, fmt.Errorf("%q stands before any option", w.text)
		default:
			last := &out[len(out)-1]
			last.value = strings.TrimSpace(last.value + " " + w.text)
		}
	}
	return out, nil
}
