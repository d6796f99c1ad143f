package main

import (
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
)

// dataplanes returns what programs each IP family, and a function that tells
// which iptables it uses. IPv4 is the only family yet.
func dataplanes() (map[dataplane.Family]dataplane.Dataplane, func() string) {
	v4 := iptables.New(dataplane.IPv4, iptables.Options{})
	return map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: v4}, v4.Version
}
