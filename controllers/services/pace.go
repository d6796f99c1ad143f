package services

import (
	"time"

	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
)

// How many bytes of ServiceProxyRules the Services of one namespace may have written, created ones
// included. Each namespace has a share for itself: one that uses it up delays its own Services
// alone. It takes changes without end to do so, as the burst is enough for 10,000 small Services, or
// for 3,000 writes of Services of 500 endpoints, which take 10 KiB each.
const (
	// namespaceShare are bytes a second, and namespaceBurst is for how long unused ones remain
	// available: 32 MiB.
	namespaceShare = 512 << 10
	namespaceBurst = 64 * time.Second
	// leastRulesBytes are what each write counts for at least.
	leastRulesBytes = 2 << 10
)

func newNamespacePace() *pacing.Buckets {
	return pacing.NewBuckets(namespaceShare, namespaceBurst, leastRulesBytes)
}
