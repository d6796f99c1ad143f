// Package fixedrules describes iptables rules that do not depend on Services: those that modes
// have in common, and all that mode IPVS needs. Package iptables programs them.
package fixedrules
