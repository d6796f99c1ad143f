package dataplane

import "github.com/nodeproxy-io/nodeproxy/api/v1alpha1"

// Numbers of protocols in packets, as IANA assigns them.
const (
	numberTCP  = 6
	numberUDP  = 17
	numberSCTP = 132
)

// Number is the family's number in sockets and netlink messages: Linux's AF_INET or AF_INET6, which
// are netfilter's NFPROTO_IPV4 and NFPROTO_IPV6.
func (f Family) Number() byte {
	if f == IPv6 {
		return 10
	}
	return 2
}

// ProtocolNumber is a protocol's number in packets; TCP's for an empty one.
func ProtocolNumber(p v1alpha1.Protocol) byte {
	switch p {
	case v1alpha1.ProtocolUDP:
		return numberUDP
	case v1alpha1.ProtocolSCTP:
		return numberSCTP
	default:
		return numberTCP
	}
}

// ProtocolOf is the protocol of a number in packets; empty: one that Services cannot have.
func ProtocolOf(number byte) v1alpha1.Protocol {
	switch number {
	case numberTCP:
		return v1alpha1.ProtocolTCP
	case numberUDP:
		return v1alpha1.ProtocolUDP
	case numberSCTP:
		return v1alpha1.ProtocolSCTP
	default:
		return ""
	}
}
