package parity

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/test/parity/rules"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// situation is what an intended difference may depend on.
type situation struct {
	world *worlds.World
}

// intended is an intended difference from kube-proxy.
type intended struct {
	name   string
	reason string
	// apply removes the difference from the states before they are compared.
	apply func(s situation, kubeProxy, nodeproxy *state)
}

// intendedDifferences returns all of them. docs/parity.md explains each under its name.
func intendedDifferences() []intended {
	return []intended{
		{
			name:   "no local endpoint",
			reason: "under policy Local without an endpoint on the node, kube-proxy forwards to endpoints on other nodes; nodeproxy does so for local pods and the node, by external addresses, and drops the rest, by sets and rules of its own, like mode IPTables; under internal policy Local it has no real servers",
			apply:  dropNoLocal,
		},
		{
			name:   "health-check ports without node port addresses",
			reason: "if node ports answer on no address of the node, kube-proxy omits the rest of such a Service port, including its health-check port; nodeproxy accepts that regardless of the addresses",
			apply:  dropHealthPorts,
		},
		{
			name:   "virtual servers of others",
			reason: "kube-proxy deletes all unknown virtual servers, unless their address is in excludeCIDRs; nodeproxy deletes only its own",
			apply:  dropUnmanaged,
		},
		{
			name:   "comments",
			reason: "nodeproxy omits kube-proxy's comments in chains that only mode IPVS has",
			apply:  dropComments,
		},
	}
}

// ownSets are nodeproxy's own sets of a family: addresses and ports without a local endpoint,
// which lead to other nodes only for pods and the node, or nowhere.
type ownSets struct{ elsewhere, nowhere string }

func noLocalSets() map[worlds.Family]ownSets {
	return map[worlds.Family]ownSets{
		worlds.IPv4: {"NODEPROXY-NO-LOCAL", "NODEPROXY-NO-LOCAL-ALL"},
		worlds.IPv6: {"NODEPROXY-6-NO-LOCAL", "NODEPROXY-6-NO-LOCAL-ALL"},
	}
}

// dropNoLocal removes the sets, the rules that match them, and, for what leads nowhere, the real
// servers of kube-proxy; but only if the policy is Local and no real server is an endpoint on
// the node. Wrong entries stay and differ, and so do missing ones.
func dropNoLocal(s situation, kubeProxy, nodeproxy *state) {
	for f, names := range noLocalSets() {
		guarded := map[string]bool{}
		nodeproxy.dropEntries(f, names.elsewhere, func(key string, ours *server) bool {
			guarded[key] = true
			return len(ours.reals) > 0 && noLocal(s.world, key, ours.reals, outside)
		})
		nodeproxy.dropEntries(f, names.nowhere, func(key string, ours *server) bool {
			there := kubeProxy.servers[key]
			if there == nil || len(ours.reals) > 0 || len(there.reals) > 0 && !noLocal(s.world, key, there.reals, inside) ||
				len(there.reals) == 0 && !noLocal(s.world, key, nil, inside, outside) {
				return false
			}
			there.reals = nil
			return true
		})
		for key, ours := range nodeproxy.servers {
			ofFamily := strings.Contains(key, "[") == (f == worlds.IPv6)
			if ofFamily && len(ours.reals) > 0 && !guarded[key] && noLocal(s.world, key, ours.reals, outside) {
				kubeProxy.servers[key] = &server{options: "has to be in " + names.elsewhere}
			}
		}
		dropNoLocalRules(nodeproxy.rules[f], names)
	}
}

// dropEntries removes intended entries, and the set if it has no others.
func (s *state) dropEntries(f worlds.Family, name string, intended func(key string, ours *server) bool) {
	own := s.sets[name]
	if own == nil {
		return
	}
	own.entries = slices.DeleteFunc(own.entries, func(entry string) bool {
		key, ok := keyOf(f, entry)
		ours := s.servers[key]
		return ok && ours != nil && intended(key, ours)
	})
	if len(own.entries) == 0 {
		delete(s.sets, name)
	}
}

func dropNoLocalRules(all rules.Rules, names ownSets) {
	for _, c := range all {
		c.Rules = slices.DeleteFunc(c.Rules, func(r rules.Rule) bool {
			asks := func(set, end string) bool {
				return strings.HasSuffix(r.Text, "--match-set "+set+" dst,dst "+end)
			}
			return asks(names.nowhere, "-j DROP") || asks(names.elsewhere, "-j DROP") ||
				asks(names.elsewhere, "-m addrtype --src-type LOCAL -j KUBE-MARK-MASQ")
		})
	}
}

// keyOf converts an entry of a set such as "10.96.0.1,tcp:80" to ipvsadm's name of the virtual
// server.
func keyOf(f worlds.Family, entry string) (key string, ok bool) {
	address, rest, found := strings.Cut(entry, ",")
	protocol, port, found2 := strings.Cut(rest, ":")
	option := map[string]string{"tcp": "-t", "udp": "-u", "sctp": "--sctp-service"}[protocol]
	if !found || !found2 || option == "" {
		return "", false
	}
	if f == worlds.IPv6 {
		address = "[" + address + "]"
	}
	return option + " " + address + ":" + port, true
}

// side is the side of the traffic to which a policy applies.
type side int

const (
	inside  side = iota // by cluster IP
	outside             // by any other address
)

// noLocal reports whether the Service of a virtual server has policy Local there, by one
// of some sides, and none of the real servers is an endpoint on the node.
func noLocal(w *worlds.World, key string, reals []string, by ...side) bool {
	option, place, _ := strings.Cut(key, " ")
	host, portText, err := net.SplitHostPort(place)
	if err != nil {
		return false
	}
	protocol := map[string]corev1.Protocol{"-t": corev1.ProtocolTCP, "-u": corev1.ProtocolUDP, "--sctp-service": corev1.ProtocolSCTP}[option]
	port, err := strconv.Atoi(portText)
	if err != nil {
		return false
	}
	isClusterIP := slices.ContainsFunc(w.Services, func(s *worlds.Service) bool { return !s.Gone && slices.Contains(s.Object.Spec.ClusterIPs, host) })
	there := outside
	if isClusterIP {
		there = inside
	}
	for _, s := range w.Services {
		if s.Gone || !slices.Contains(by, there) || !localThere(s.Object, host, there, int32(port), protocol) { //nolint:gosec // a port
			continue
		}
		return !slices.ContainsFunc(reals, func(real string) bool { // "-r 10.244.1.2:8000 -m -w 1"
			address, err := netip.ParseAddrPort(strings.Fields(real)[1])
			return err != nil || s.Local(address.Addr().String())
		})
	}
	return false
}

// localThere reports whether a Service has policy Local for what is sent to an address
// and port, which is its own or, as a node port, any.
func localThere(s *corev1.Service, host string, by side, port int32, protocol corev1.Protocol) bool {
	for _, p := range s.Spec.Ports {
		if p.Protocol != protocol {
			continue
		}
		switch {
		case by == inside && p.Port == port && slices.Contains(s.Spec.ClusterIPs, host):
			return s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
		case by == outside && (p.NodePort == port || p.Port == port && answersAt(s, host)):
			return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	return false
}

// answersAt reports whether an address is an external or a load balancer's one of a
// Service.
func answersAt(s *corev1.Service, host string) bool {
	return slices.Contains(s.Spec.ExternalIPs, host) ||
		slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool { return i.IP == host })
}

func dropHealthPorts(s situation, kubeProxy, nodeproxy *state) {
	for f, name := range map[worlds.Family]string{worlds.IPv4: "KUBE-HEALTH-CHECK-NODE-PORT", worlds.IPv6: "KUBE-6-HEALTH-CHECK-NODE-PORT"} {
		theirs, ours := kubeProxy.sets[name], nodeproxy.sets[name]
		if theirs == nil || ours == nil || !s.world.Settings.NodePortsNowhere(f) {
			continue
		}
		ours.entries = slices.DeleteFunc(ours.entries, func(port string) bool {
			asked := slices.ContainsFunc(s.world.Services, func(s *worlds.Service) bool {
				return !s.Gone && strconv.Itoa(int(s.Object.Spec.HealthCheckNodePort)) == port
			})
			return asked && !slices.Contains(theirs.entries, port)
		})
	}
}

// unmanaged are virtual servers of another program, in the syntax of ipvsadm.
// Some worlds exclude their addresses.
func unmanaged() []string { return []string{"-t 203.0.113.200:7777", "-t [2001:db8:113:1::5]:7777"} }

// dropUnmanaged removes those that nodeproxy has preserved. A missing one differs, although
// kube-proxy lacks it too.
func dropUnmanaged(_ situation, kubeProxy, nodeproxy *state) {
	for _, key := range unmanaged() {
		switch theirs, ours := kubeProxy.servers[key], nodeproxy.servers[key]; {
		case ours == nil:
			kubeProxy.servers[key] = &server{options: "of another program, must stay"}
		case theirs == nil:
			delete(nodeproxy.servers, key)
		}
	}
}

func dropComments(_ situation, kubeProxy, nodeproxy *state) {
	for f := range kubeProxy.rules {
		for k, c := range kubeProxy.rules[f] {
			if ours := nodeproxy.rules[f][k]; ours != nil && !c.BuiltIn() {
				c.Silence()
				ours.Silence()
			}
		}
	}
}
