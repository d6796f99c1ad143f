package e2e

import (
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// gathered runs hack/must-gather: it has all that it promises and no secret.
func gathered(r *run) {
	const secret = "must-stay-secret"
	r.kubectl("-n", system, "create", "secret", "generic", "e2e", "--from-literal=password="+secret)
	defer r.kubectl("-n", system, "delete", "secret", "e2e")
	directory := filepath.Join(r.temp, "must-gather")
	out := guide{directory: r.root}.shell(r, "hack/must-gather "+directory)
	for file, part := range map[string]string{
		"objects/nodeproxies.yaml":              "kind: NodeProxy",
		"objects/nodeproxyrules.yaml":           "kind: NodeProxyRules",
		"objects/serviceproxyrules.yaml":        "shop.cluster-ip",
		"objects/services.yaml":                 "name: cluster-ip",
		"namespace/daemonsets.yaml":             "name: nodeproxy-agent",
		"namespace/events.txt":                  "nodeproxy",
		"versions/agents.txt":                   "node-2",
		"desired-and-actual.txt":                "node-1",
		"conntrack.txt":                         "node-1",
		"nodes/node-1/iptables-nft-save.txt":    "shop/cluster-ip:tcp",
		"nodes/node-2/ip6tables-nft-save.txt":   "shop/cluster-ip:tcp",
		"nodes/node-2/iptables-legacy-save.txt": "",
		"nodes/node-1/log.txt":                  `node="node-1"`,
		"nodes/node-2/metrics.txt":              "nodeproxy_",
	} {
		text, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil || !strings.Contains(string(text), part) {
			r.Errorf("%s does not have %q: %v", file, part, err)
		}
	}
	if missing, err := os.ReadFile(filepath.Join(directory, "could-not-be-collected.txt")); len(missing) > 0 {
		r.Errorf("could not be collected (%v): %s", err, missing)
	}
	if _, err := os.Stat(directory + ".tar.gz"); err != nil {
		r.Error(err)
	}
	files := 0
	r.must(filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		for _, forbidden := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), "kind: Secret"} {
			if strings.Contains(string(text), forbidden) {
				r.Errorf("%s holds %q", path, forbidden)
			}
		}
		return err
	}))
	r.remark("%d files", files)
	if r.Failed() {
		r.Log(out)
	}
}
