package agent

import (
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// intervals returns the least pause between syncs and that between
// verifications.
func intervals(s *v1alpha1.ProxySettings) (minimum, verify time.Duration) {
	return time.Duration(*s.Sync.MinIntervalMilliseconds) * time.Millisecond,
		time.Duration(*s.Sync.VerifyIntervalSeconds) * time.Second
}
