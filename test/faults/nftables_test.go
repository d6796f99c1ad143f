package faults

import (
	"context"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// inNFTables are the named ones of faults, for a cluster in mode NFTables.
func inNFTables(faults []fault, names ...string) []fault {
	var out []fault
	for _, f := range faults {
		if slices.Contains(names, f.name) {
			f.name, f.title = "nftables-"+f.name, f.title+", mode NFTables"
			out = append(out, f)
		}
	}
	return out
}

// justNow is how long after the commit of a batch a kill counts: the batch itself takes less than a
// millisecond, and the kernel commits all of it or nothing.
const justNow = 5 * time.Millisecond

// batches returns what makes a function for a node that reports whether its kernel has
// just committed a batch. Only agents send any.
func (r *run) batches() func(*cluster.Node, *cluster.Process) func() bool {
	sockets := map[string]*nft.Conn{}
	return func(node *cluster.Node, _ *cluster.Process) func() bool {
		socket := sockets[node.Name()]
		if socket == nil {
			r.must(node.Do(func() (err error) { socket, err = nft.Open(); return err }))
			r.Cleanup(func() { _ = socket.Close() })
			sockets[node.Name()] = socket
		}
		last, err := socket.Generation()
		r.must(err)
		var at time.Time
		return func() bool {
			generation, err := socket.Generation()
			r.must(err)
			if generation != last {
				last, at = generation, time.Now()
			}
			return time.Since(at) <= justNow
		}
	}
}

var (
	// index is that of an endpoint in a key. Endpoints keep their index while others change, so
	// that it depends on what was before.
	index = regexp.MustCompile(` \. (0x[0-9a-f]+|\d+) : `)
	// linkLocal are addresses that a reboot changes.
	linkLocal = regexp.MustCompile(`\bfe80::[0-9a-f:]*`)
)

// listedTables is saved in mode NFTables: the rules and elements of both tables, without the
// clients of session affinity, the indexes of endpoints, and chains that nothing leads to,
// which stay for the next Service with so many endpoints.
func listedTables(ctx context.Context, node *cluster.Node) ([]string, error) {
	var all []string
	for _, family := range []string{"ip", "ip6"} {
		text, err := node.Exec(ctx, "nft", "list", "table", family, nftables.TableName)
		if err != nil {
			return nil, err
		}
		object, objects := "", map[string][]string{}
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if name, opens := strings.CutSuffix(line, " {"); opens && !strings.HasPrefix(line, "elements") {
				object = name
				continue
			}
			line = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(line, "elements = { "), "}"), ",")
			if line = strings.TrimSpace(line); line == "" || object == "map affinity" {
				continue
			}
			parts := []string{line}
			if strings.HasPrefix(object, "map ") || strings.HasPrefix(object, "set ") {
				parts = strings.Split(line, ", ")
			}
			for _, part := range parts {
				if object == "map endpoints" || object == "map local-endpoints" {
					part = index.ReplaceAllString(part, " : ")
				}
				part = linkLocal.ReplaceAllString(part, "fe80::")
				objects[object] = append(objects[object], family+" "+object+": "+part)
			}
		}
		all = append(all, used(objects)...)
	}
	slices.Sort(all)
	return all, nil
}

// used are the lines of the objects of a table, without chains that nothing leads to.
func used(objects map[string][]string) []string {
	for {
		lines := slices.Concat(slices.Collect(maps.Values(objects))...)
		before := len(objects)
		for object, own := range objects {
			chain, is := strings.CutPrefix(object, "chain ")
			if is && !strings.Contains(own[0], " hook ") &&
				!slices.ContainsFunc(lines, func(line string) bool { return strings.HasSuffix(line, "goto "+chain) }) {
				delete(objects, object)
			}
		}
		if len(objects) == before {
			return lines
		}
	}
}

var (
	destinations = regexp.MustCompile(`^ip6? map service-ips: (\S+ \. \w+ \. \d+) comment "([^"]+)" : (?:goto )?(\S+)$`)
	toEndpoint   = regexp.MustCompile(`^ip6? map (local-)?endpoints: (\S+ \. \w+ \. \d+) : (\S+) \. (\d+)$`)
)

// servedByTables is served in mode NFTables. Policy Local has endpoints of its own only at
// other addresses of the Service port than cluster IPs.
func servedByTables(rules []string) []string {
	all, locals := map[string][]string{}, map[string][]string{}
	for _, rule := range rules {
		if m := toEndpoint.FindStringSubmatch(rule); m != nil {
			to := all
			if m[1] != "" {
				to = locals
			}
			to[m[2]] = append(to[m[2]], " "+net.JoinHostPort(m[3], m[4]))
		}
	}
	cluster, onNode := map[string]string{}, map[string][]string{}
	for _, rule := range rules {
		m := destinations.FindStringSubmatch(rule)
		if m == nil {
			continue
		}
		family, _, _ := strings.Cut(rule, " ")
		port := family + m[2]
		if strings.HasPrefix(m[3], "cluster-") {
			cluster[port] = m[1]
		}
		onNode[port] = append(onNode[port], locals[m[1]]...)
	}
	var out []string
	for port, destination := range cluster {
		parts := strings.Split(destination, " . ")
		line := net.JoinHostPort(parts[0], parts[2]) + "/" + parts[1]
		for _, endpoint := range all[destination] {
			out = append(out, line+endpoint)
		}
		for _, endpoint := range onNode[port] {
			out = append(out, line+endpoint+local)
		}
	}
	return out
}

// elementsOf are the elements of a node's rules for a Service port.
func (r *run) elementsOf(node *cluster.Node, port string) []string {
	var out []string
	for _, rule := range r.before[node.Name()] {
		if m := destinations.FindStringSubmatch(rule); len(m) > 2 && m[2] == port {
			out = append(out, rule)
		}
	}
	if len(out) == 0 {
		r.Fatalf("%s has no elements for %s", node.Name(), port)
	}
	return out
}

// removeElements removes such elements.
func removeElements(ctx context.Context, node *cluster.Node, elements []string) error {
	for _, element := range elements {
		family, _, _ := strings.Cut(element, " ")
		key := destinations.FindStringSubmatch(element)[1]
		if _, err := node.Exec(ctx, "nft", "delete", "element", family, nftables.TableName, "service-ips", fmt.Sprintf("{ %s }", key)); err != nil {
			return err
		}
	}
	return nil
}
