package render

import (
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Sizes of Services above which their rules are not written at once after each other: of
// endpoints, and of combinations of a port with an endpoint, an address or a source range,
// each of which is rules or ipset entries on every node.
const (
	largeService = 500
	hugeService  = 2000
	hugeProduct  = 5000

	largeInterval = time.Second
	hugeInterval  = 5 * time.Second
)

// Objects of more than smallObject bytes are not written at once after each other either: on
// average the rules of each Service with no more than serviceRate bytes a second, those of each
// node, which change for all tenants, with nodeRate.
const (
	smallObject = 16 << 10
	serviceRate = 128 << 10
	nodeRate    = 1 << 20
)

// Load is what the rules of a Service cost whoever has to read and program them.
type Load struct {
	Endpoints int32
	// Combinations are those of v1alpha1.ServiceSize.
	Combinations int
	// Bytes are those of the object.
	Bytes int
}

// LoadOf returns the load of rules that take so many bytes.
func LoadOf(rules *v1alpha1.ServiceProxyRulesSpec, bytes int) Load {
	return Load{rules.EndpointCount, v1alpha1.SizeOf(rules).Combinations(), bytes}
}

// Max returns the higher figures of both.
func (l Load) Max(o Load) Load {
	return Load{max(l.Endpoints, o.Endpoints), max(l.Combinations, o.Combinations), max(l.Bytes, o.Bytes)}
}

// Pace returns how much time passes at least between two writes of the rules of a
// Service. The first change goes at once.
func Pace(l Load) time.Duration {
	interval := bytesPace(l.Bytes, serviceRate)
	switch {
	case l.Endpoints > hugeService || l.Combinations > hugeProduct:
		return max(interval, hugeInterval)
	case l.Endpoints > largeService:
		return max(interval, largeInterval)
	default:
		return interval
	}
}

// NodePace returns how much time passes at least between two writes of the rules of a node of so
// many bytes.
func NodePace(bytes int) time.Duration {
	return bytesPace(bytes, nodeRate)
}

func bytesPace(bytes, rate int) time.Duration {
	if bytes <= smallObject {
		return 0
	}
	return time.Duration(bytes) * time.Second / time.Duration(rate)
}
