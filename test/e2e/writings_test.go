package e2e

import (
	"regexp"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

// writing is what is in a chain of a node's kernel, and when it was written: each
// rule has a handle, which it loses when it is written again.
type writing struct {
	rules   []string
	handles []string
}

// ofServices are the chains that are written anew only when their Service
// changes, by kube-proxy as well.
var ofServices = regexp.MustCompile(`^KUBE-(SVC|SVL|SEP|EXT|FW)-`)

// counted is what the kernel counts of a rule.
var counted = regexp.MustCompile(`counter packets \d+ bytes \d+`)

// writings are those of the Services' chains of nodes, all if none is given.
func (r *run) writings(nodes ...*kubelets.Node) map[string]writing {
	r.Helper()
	if nodes == nil {
		nodes = r.cluster.Nodes()
	}
	all := map[string]writing{}
	for _, node := range nodes {
		r.writingsOf(node, all)
	}
	return all
}

func (r *run) writingsOf(node *kubelets.Node, all map[string]writing) {
	r.Helper()
	out, err := node.Exec(r.ctx, nil, "nft", "-a", "list", "ruleset")
	r.must(err)
	var table, chain string
	for line := range strings.Lines(out) {
		text, handle, _ := strings.Cut(strings.TrimSpace(line), " # handle ")
		words := strings.Fields(text)
		switch {
		case len(words) == 4 && words[0] == "table":
			table = node.Name() + " " + words[1] + " " + words[2]
		case len(words) == 3 && words[0] == "chain":
			chain = words[1]
		case handle != "" && ofServices.MatchString(chain):
			w := all[table+" "+chain]
			w.rules = append(w.rules, counted.ReplaceAllString(text, "counter"))
			w.handles = append(w.handles, handle)
			all[table+" "+chain] = w
		}
	}
}

// nothingWritten fails if a chain was written again that held the same before.
func (r *run) nothingWritten(before, after map[string]writing) {
	r.Helper()
	same := 0
	for chain, was := range before {
		is := after[chain]
		if !slices.Equal(was.rules, is.rules) {
			continue
		}
		if same++; !slices.Equal(was.handles, is.handles) {
			r.Errorf("%s: written again, though it was right: %q", chain, is.rules)
		}
	}
	if same < 30 {
		r.Errorf("only %d of %d chains are unchanged: this proves too little", same, len(before))
	}
}
