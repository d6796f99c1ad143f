package desired

import (
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// newerVersion returns the higher of two resource versions, which are decimal
// numbers of any length. What is no such number is lower than any.
func newerVersion(a, b string) string {
	if CompareVersions(a, b) < 0 {
		return b
	}
	return a
}

// CompareVersions compares two resource versions as numbers.
func CompareVersions(a, b string) int {
	a, b = digits(a), digits(b)
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// digits strips leading zeros. It returns nothing for what is no number.
func digits(s string) string {
	if strings.Trim(s, "0123456789") != "" {
		return ""
	}
	return strings.TrimLeft(s, "0")
}

func parseInventoryHash(s string) (uint64, bool) {
	sum, err := strconv.ParseUint(s, 16, 64)
	return sum, err == nil && v1alpha1.FormatInventoryHash(sum) == s
}
