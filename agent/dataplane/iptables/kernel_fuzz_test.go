package iptables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
)

// FuzzSave reads text as the output of iptables-save. What is read must be what
// the text shows to a reader that only counts lines, and must come back when it
// is printed.
func FuzzSave(f *testing.F) {
	f.Add("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -m comment --comment \"a \\\" b\" -j RETURN\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		state := newKernelState()
		err := state.read(strings.NewReader(text))
		_ = (&traces{}).read(strings.NewReader(text))
		if err != nil {
			return
		}
		if diff := cmp.Diff(countLines(text), counts(state)); diff != "" {
			t.Errorf("rules by chain (-lines of the text +read):\n%s", diff)
		}
		again := newKernelState()
		if err := again.read(strings.NewReader(printed(state))); err != nil {
			t.Fatalf("what was read cannot be read when printed: %v", err)
		}
		for id, c := range state.chains {
			if c.count != len(c.rules) { // only a hash is stored
				continue
			}
			if diff := cmp.Diff(c, again.chains[id], cmp.AllowUnexported(kernelChain{}, kernelRule{})); diff != "" {
				t.Errorf("%v (-read +printed and read):\n%s", id, diff)
			}
		}
	})
}

// countLines counts the rules of each chain of nat and filter.
func countLines(text string) map[chainID]int {
	out := map[chainID]int{}
	in, known := filter, false
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSuffix(line, "\r") // as bufio.ScanLines
		switch {
		case strings.HasPrefix(line, "*"):
			known = line == "*nat" || line == "*filter"
			if in = filter; line == "*nat" {
				in = nat
			}
		case known && strings.HasPrefix(line, ":"):
			out[chainID{in, strings.SplitN(line[1:], " ", 2)[0]}] = 0
		case known && strings.HasPrefix(line, "-A "):
			out[chainID{in, strings.SplitN(line, " ", 3)[1]}]++
		}
	}
	return out
}

func counts(k *kernelState) map[chainID]int {
	out := map[chainID]int{}
	for id, c := range k.chains {
		out[id] = c.count
	}
	return out
}

// printed is the text of iptables-save for a state, without the rules of which it
// only has a hash.
func printed(k *kernelState) string {
	var out strings.Builder
	for _, t := range []table{nat, filter} {
		out.WriteString("*" + t + "\n")
		for id := range k.chains {
			if id.table == t {
				out.WriteString(":" + id.name + " - [0:0]\n")
			}
		}
		for id, c := range k.chains {
			for _, r := range c.rules {
				if id.table == t {
					out.WriteString("-A " + id.name + " " + r.spec + "\n")
				}
			}
		}
		out.WriteString("COMMIT\n")
	}
	return out.String()
}

// FuzzSaveOfModel compares the reader with the model of the kernel, which has its
// own: text that iptables-restore would accept is read as the same chains.
func FuzzSaveOfModel(f *testing.F) {
	f.Add("*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -p tcp -m tcp --dport 80 -j RETURN\n-A PREROUTING -j KUBE-SVC-A\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		model := iptablesmodel.NewKernel()
		if strings.ContainsRune(text, '\r') || model.Restore(text) != nil {
			return // lines end in a bare newline
		}
		state := newKernelState()
		want := map[chainID]int{}
		for _, in := range []table{nat, filter} {
			if err := state.read(strings.NewReader(model.Save(in))); err != nil {
				t.Fatal(err)
			}
			for _, name := range model.Chains(in) {
				rules, _ := model.Chain(in, name)
				want[chainID{in, name}] = len(rules)
			}
		}
		if diff := cmp.Diff(want, counts(state)); diff != "" {
			t.Errorf("rules by chain (-model +read):\n%s", diff)
		}
	})
}

// FuzzRuleHash checks what a rule's hash must ignore, and what it must not.
func FuzzRuleHash(f *testing.F) {
	f.Add(`-d 10.96.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp --dport 53`)
	f.Fuzz(func(t *testing.T, spec string) {
		h := ruleHash(spec)
		commented := `-m comment --comment "a b" ` + spec
		if ruleHash(commented) != h {
			t.Error("a comment changes the hash")
		}
		if got := comment(commented); got != "a b" {
			t.Errorf("the comment is read as %q", got)
		}
		if ruleHash("  "+spec) != h {
			t.Error("spaces before the rule change the hash")
		}
		if ruleHash(spec+" -j KUBE-SEP-A") == ruleHash(spec+" -j KUBE-SEP-B") {
			t.Error("the hash does not depend on the target")
		}
		if ruleHash("-s 10.0.0.1 "+spec) != ruleHash("-s 10.0.0.1/32 "+spec) { // behind it, this could be an option's value
			t.Error("an address and its full prefix have different hashes")
		}
	})
}
