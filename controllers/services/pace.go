package services

import (
	"time"

	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
)

// How many bytes of ServiceProxyRules the Services of one namespace may write, including new ones.
// A namespace that uses up its share only delays its own Services. It takes continuous changes to
// do so: the burst is enough for 10,000 small Services, or for 3,000 writes of Services with 500
// endpoints of 10 KiB each.
const (
	// namespaceShare are bytes per second, and namespaceBurst is how long unused ones remain
	// available: 32 MiB.
	namespaceShare = 512 << 10
	namespaceBurst = 64 * time.Second
	// leastRulesBytes is the minimum that each write counts for.
	leastRulesBytes = 2 << 10
)

func newNamespacePace() *pacing.Buckets {
	return pacing.NewBuckets(namespaceShare, namespaceBurst, leastRulesBytes)
}
