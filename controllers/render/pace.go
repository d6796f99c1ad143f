package render

import "time"

// Sizes of Services, in endpoints, above which their rules are not written at once after
// each other.
const (
	largeService = 500
	hugeService  = 2000

	largeInterval = time.Second
	hugeInterval  = 5 * time.Second
)

// Pace returns how much time passes at least between two writes of the rules of a
// Service with so many endpoints. The first change goes at once.
func Pace(endpoints int32) time.Duration {
	switch {
	case endpoints > hugeService:
		return hugeInterval
	case endpoints > largeService:
		return largeInterval
	default:
		return 0
	}
}
