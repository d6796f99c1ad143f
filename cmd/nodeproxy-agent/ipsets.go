package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
)

// setReader is the part of ipvs.Kernel that reads ipsets.
type setReader interface {
	Sets([]ipvs.SetName) (map[ipvs.SetName][]ipvs.Entry, error)
}

// printIPSets prints the ipsets of mode IPVS with their entries. The agent's image lacks the
// program ipset.
func printIPSets(out io.Writer, kernel func(dataplane.Family) setReader) error {
	w := bufio.NewWriter(out)
	exist := false
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		sets, err := kernel(family).Sets(ipvs.SetNames(family))
		if err != nil {
			return fmt.Errorf("reading the ipsets of %s: %w", family, err)
		}
		for _, name := range slices.Sorted(maps.Keys(sets)) {
			exist = true
			fmt.Fprintf(w, "%s, entries: %d\n", name, len(sets[name]))
			for _, entry := range slices.Sorted(slices.Values(sets[name])) {
				fmt.Fprintf(w, "  %s\n", entry)
			}
		}
	}
	if !exist {
		fmt.Fprintln(w, "no ipsets of mode IPVS on this node")
	}
	return w.Flush()
}
