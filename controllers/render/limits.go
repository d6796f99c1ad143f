package render

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Size counts what is limited in a Service, without rendering it.
func Size(svc *corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) v1alpha1.ServiceSize {
	return sizeOfSlices(endpointSlices).Plus(v1alpha1.ServiceSize{
		Ports:           len(svc.Spec.Ports),
		Addresses:       len(svc.Spec.ExternalIPs) + len(svc.Status.LoadBalancer.Ingress),
		LoadBalancerIPs: len(svc.Status.LoadBalancer.Ingress),
		SourceRanges:    len(svc.Spec.LoadBalancerSourceRanges),
	})
}

// OverLimit reports whether slices alone exceed a limit of their Service. It reads
// endpoints only if there are not too many.
func OverLimit(endpointSlices []*discoveryv1.EndpointSlice) bool {
	limit, _ := sizeOfSlices(endpointSlices).Excess()
	return limit != ""
}

func sizeOfSlices(endpointSlices []*discoveryv1.EndpointSlice) (size v1alpha1.ServiceSize) {
	size.Slices = len(endpointSlices)
	for _, slice := range endpointSlices {
		size.SlicePorts += len(slice.Ports)
		size.Endpoints += len(slice.Endpoints)
		size.PortEndpoints += len(slice.Endpoints) * len(slice.Ports)
	}
	if limit, _ := size.Excess(); limit != "" {
		return size
	}
	for _, slice := range endpointSlices {
		hints := 0
		for i := range slice.Endpoints {
			hints += hintBytes(slice.Endpoints[i].Hints)
		}
		size.HintBytes += hints * len(slice.Ports)
	}
	return size
}

// hintBytes is the size of hints as JSON.
func hintBytes(hints *discoveryv1.EndpointHints) (n int) {
	if hints == nil {
		return 0
	}
	for i := range hints.ForZones {
		n += len(`"",`) + len(hints.ForZones[i].Name)
	}
	for i := range hints.ForNodes {
		n += len(`"",`) + len(hints.ForNodes[i].Name)
	}
	return n
}

// Sizes above which the rules of a Service are not written in direct succession: endpoints, and
// combinations of a port with an endpoint, an address or a source range, each of which is rules,
// ipset entries or real servers on every node.
const (
	largeService = 500
	hugeService  = 2000
	hugeProduct  = 5000

	largeInterval = time.Second
	hugeInterval  = 5 * time.Second
)

// Neither are objects of more than smallObject bytes: on average, the rules of a Service are written
// with at most serviceRate bytes a second, and those of a node, which change for all tenants, with
// nodeRate.
const (
	smallObject = 16 << 10
	serviceRate = 128 << 10
	nodeRate    = 1 << 20
)

// Load is the cost of reading and programming the rules of a Service.
type Load struct {
	Endpoints    int32
	Combinations int // of v1alpha1.ServiceSize
	Bytes        int // of the object
}

// LoadOf returns the load of rules of that many bytes.
func LoadOf(rules *v1alpha1.ServiceProxyRulesSpec, bytes int) Load {
	return Load{rules.EndpointCount, v1alpha1.SizeOf(rules).Combinations(), bytes}
}

// Max returns the higher value of each.
func (l Load) Max(o Load) Load {
	return Load{max(l.Endpoints, o.Endpoints), max(l.Combinations, o.Combinations), max(l.Bytes, o.Bytes)}
}

// Pace returns the minimum interval between two writes of the rules of a Service.
func Pace(l Load) time.Duration {
	interval := bytesPace(l.Bytes, serviceRate)
	switch {
	case l.Endpoints > hugeService || l.Combinations > hugeProduct:
		return max(interval, hugeInterval)
	case l.Endpoints > largeService:
		return max(interval, largeInterval)
	}
	return interval
}

// NodePace returns the minimum interval between two writes of the rules of a node.
func NodePace(bytes int) time.Duration {
	return bytesPace(bytes, nodeRate)
}

func bytesPace(bytes, rate int) time.Duration {
	if bytes <= smallObject {
		return 0
	}
	return time.Duration(bytes) * time.Second / time.Duration(rate)
}
