package worlds

// Family is an IP family, as people call it.
type Family string

// The families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// Families are both, in the order in which they are looked at.
func Families() []Family { return []Family{IPv4, IPv6} }
