package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Chains that every node has. The names are kube-proxy's, so that a node is
// taken over in place and tools that know them keep working.
const (
	chainServices         = "KUBE-SERVICES"
	chainExternalServices = "KUBE-EXTERNAL-SERVICES"
	chainNodePorts        = "KUBE-NODEPORTS"
	chainPostrouting      = "KUBE-POSTROUTING"
	chainMarkMasq         = "KUBE-MARK-MASQ"
	chainForward          = "KUBE-FORWARD"
	chainProxyFirewall    = "KUBE-PROXY-FIREWALL"
	// chainFirewall is shared with the kubelet: our rule is ensured, others in
	// it are never removed.
	chainFirewall = "KUBE-FIREWALL"
)

// Chains of mode IPVS alone. It shares others with this mode: see isShared.
const (
	chainNodePort      = "KUBE-NODE-PORT"
	chainLoadBalancer  = "KUBE-LOAD-BALANCER"
	chainSourceRanges  = "KUBE-SOURCE-RANGES-FIREWALL"
	chainIPVSFilter    = "KUBE-IPVS-FILTER"
	chainIPVSOutFilter = "KUBE-IPVS-OUT-FILTER"
)

// Prefixes of chains that belong to one port of a Service.
const (
	prefixCluster  = "KUBE-SVC-"
	prefixLocal    = "KUBE-SVL-"
	prefixExternal = "KUBE-EXT-"
	prefixFirewall = "KUBE-FW-"
	prefixEndpoint = "KUBE-SEP-"
)

// isServiceChain reports whether a nat chain belongs to one port of a Service
// or to one of its endpoints.
func isServiceChain(name string) bool {
	return strings.HasPrefix(name, prefixEndpoint) || strings.HasPrefix(name, prefixCluster) ||
		strings.HasPrefix(name, prefixLocal) || strings.HasPrefix(name, prefixExternal) ||
		strings.HasPrefix(name, prefixFirewall)
}

// portName is how rules and comments name one port of a Service.
func portName(svc dataplane.ServiceName, port string) string {
	if port == "" {
		return svc.Namespace + "/" + svc.Name
	}
	return svc.Namespace + "/" + svc.Name + ":" + port
}

// chainHash is the part of a chain's name that stands for one port of a
// Service, and for one of its endpoints if endpoint is not empty.
func chainHash(portName, protocol, endpoint string) string {
	sum := sha256.Sum256([]byte(portName + protocol + endpoint))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

// protocolName is a protocol as iptables writes it.
func protocolName(p v1alpha1.Protocol) string {
	switch p {
	case v1alpha1.ProtocolUDP:
		return "udp"
	case v1alpha1.ProtocolSCTP:
		return "sctp"
	default:
		return "tcp"
	}
}
