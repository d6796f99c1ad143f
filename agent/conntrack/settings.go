package conntrack

import (
	"fmt"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Names of sysctls below net.netfilter.
const (
	sysctlMax     = "nf_conntrack_max"
	sysctlBuckets = "nf_conntrack_buckets"
	sysctlCount   = "nf_conntrack_count"
	sysctlLiberal = "nf_conntrack_tcp_be_liberal"
)

const (
	// largestByCores bounds the size of the table that a number of cores gives.
	largestByCores = 1 << 20
	// perBucket is how many connections a bucket of the hash table may hold when
	// the table is full.
	perBucket = 4
)

// wish is a value that a sysctl should have, and the setting that says so.
type wish struct {
	sysctl string
	value  int64
	field  string // below spec.settings.conntrack
	leave  string // what to set the field to so that the sysctl is left alone
}

// wishes lists what complete settings ask for, the size of the table first.
// What they leave as it is is not in it.
func wishes(s *v1alpha1.ConntrackSettings, cores int) []wish {
	var out []wish
	if size := tableSize(int64(*s.MaxPerCore), int64(*s.Min), int64(cores)); size > 0 {
		out = append(out, wish{sysctlMax, size, "maxPerCore", "0"})
	}
	for _, t := range []struct {
		sysctl, field string
		seconds       int32
	}{
		{"nf_conntrack_tcp_timeout_established", "tcpEstablishedTimeoutSeconds", *s.TCPEstablishedTimeoutSeconds},
		{"nf_conntrack_tcp_timeout_close_wait", "tcpCloseWaitTimeoutSeconds", *s.TCPCloseWaitTimeoutSeconds},
		{"nf_conntrack_udp_timeout", "udpTimeoutSeconds", *s.UDPTimeoutSeconds},
		{"nf_conntrack_udp_timeout_stream", "udpStreamTimeoutSeconds", *s.UDPStreamTimeoutSeconds},
	} {
		if t.seconds > 0 {
			out = append(out, wish{t.sysctl, int64(t.seconds), t.field, "0"})
		}
	}
	if *s.TCPBeLiberal == v1alpha1.Enabled {
		out = append(out, wish{sysctlLiberal, 1, "tcpBeLiberal", string(v1alpha1.Disabled)})
	}
	return out
}

// tableSize is how many connections the table should take; 0: as many as it
// does. The number of cores gives no more than largestByCores, least may be more.
func tableSize(perCore, least, cores int64) int64 {
	size := perCore * cores
	switch {
	case perCore <= 0:
		return 0
	case size > largestByCores:
		return largestByCores
	default:
		return max(size, least)
	}
}

// unmet is a wish that the kernel does not fulfil.
type unmet struct {
	wish
	has    int64
	absent bool // the kernel has no such sysctl
	cause  cause
	err    error
}

// cause is why a wish is not fulfilled.
type cause int

const (
	readOnly cause = iota // the file system
	notOurs               // this network namespace's to change
	lacking               // in this kernel
	tooSmall              // for what is in the table
	other
)

// say tells people what is not as the settings ask, why, and what to do: one
// text for each cause.
func say(list []unmet) []string {
	var out []string
	for c := readOnly; c <= other; c++ {
		var facts, fields []string
		var err error
		for _, u := range list {
			if u.cause != c {
				continue
			}
			fact := fmt.Sprintf("net.netfilter.%s is %d, not %d", u.sysctl, u.has, u.value)
			if u.absent {
				fact = fmt.Sprintf("there is no net.netfilter.%s to be set to %d", u.sysctl, u.value)
			}
			facts, fields = append(facts, fact), append(fields, "conntrack."+u.field+" to "+u.leave)
			if err == nil {
				err = u.err
			}
		}
		if len(facts) > 0 {
			out = append(out, fmt.Sprintf("%s %s, or leave it by setting %s in spec.settings",
				strings.Join(facts, ", "), c.explain(err), strings.Join(fields, ", ")))
		}
	}
	return out
}

// explain says why, and what to do.
func (c cause) explain(err error) string {
	switch c {
	case readOnly:
		return "because /proc/sys is read-only for the agent: mount the node's /proc/sys/net into its container and name the folder with --sysctl-folder, as config/agent/daemonset.yaml does, or set the values on the node"
	case notOurs:
		return "because it cannot be written in the agent's network namespace: run the agent in that of the host, as root, or set the values there"
	case lacking:
		return "because this kernel lacks it: use a newer kernel"
	case tooSmall:
		return "because the connections in the table would nearly fill the smaller one and new ones would fail: wait until there are fewer, or raise conntrack.maxPerCore or conntrack.min"
	default:
		return fmt.Sprintf("because writing it fails (%v): set the values on the node", err)
	}
}
