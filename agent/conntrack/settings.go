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
	// largestByCores bounds the size of the table that results from the number of cores.
	largestByCores = 1 << 20
	// perBucket is how many connections a bucket of the hash table may have if the table is full.
	perBucket = 4
)

// sysctl is a desired value, and the setting that requires it.
type sysctl struct {
	name  string
	value int64
	field string // below spec.settings.conntrack
	off   string // the value of the field that leaves the sysctl unmanaged
}

// desiredSysctls lists what complete settings require, the size of the table first, without
// what they leave unmanaged.
func desiredSysctls(s *v1alpha1.ConntrackSettings, cores int) []sysctl {
	liberal := int64(0)
	if *s.TCPBeLiberal == v1alpha1.Enabled {
		liberal = 1
	}
	var out []sysctl
	for _, d := range []sysctl{
		{sysctlMax, tableSize(int64(*s.MaxPerCore), int64(*s.Min), int64(cores)), "maxPerCore", "0"},
		{"nf_conntrack_tcp_timeout_established", int64(*s.TCPEstablishedTimeoutSeconds), "tcpEstablishedTimeoutSeconds", "0"},
		{"nf_conntrack_tcp_timeout_close_wait", int64(*s.TCPCloseWaitTimeoutSeconds), "tcpCloseWaitTimeoutSeconds", "0"},
		{"nf_conntrack_udp_timeout", int64(*s.UDPTimeoutSeconds), "udpTimeoutSeconds", "0"},
		{"nf_conntrack_udp_timeout_stream", int64(*s.UDPStreamTimeoutSeconds), "udpStreamTimeoutSeconds", "0"},
		{sysctlLiberal, liberal, "tcpBeLiberal", string(v1alpha1.Disabled)},
	} {
		if d.value > 0 {
			out = append(out, d)
		}
	}
	return out
}

// tableSize is how many connections the table should take; 0: unmanaged. The number of cores
// results in at most largestByCores; least may be more.
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

// unmet is a sysctl that does not have its desired value.
type unmet struct {
	sysctl
	has    int64
	absent bool // the kernel has no such sysctl
	cause  cause
	err    error
}

// cause is why a sysctl does not have its desired value.
type cause int

const (
	readOnly  cause = iota // the file system
	denied                 // in this network namespace
	lacking                // in this kernel
	tooSmall               // for the connections in the table
	otherwise              // see the error
)

// describe returns what differs from the settings, why, and what to do: one text for each cause.
func describe(list []unmet) []string {
	var out []string
	for c := readOnly; c <= otherwise; c++ {
		var facts, fields []string
		var err error
		for _, u := range list {
			if u.cause != c {
				continue
			}
			fact := fmt.Sprintf("net.netfilter.%s is %d, not %d", u.name, u.has, u.value)
			if u.absent {
				fact = fmt.Sprintf("there is no net.netfilter.%s to be set to %d", u.name, u.value)
			}
			facts, fields = append(facts, fact), append(fields, "conntrack."+u.field+" to "+u.off)
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

// explain returns why, and what to do.
func (c cause) explain(err error) string {
	switch c {
	case readOnly:
		return "because /proc/sys is read-only for the agent: mount the node's /proc/sys/net into its container and name the directory with --sysctl-directory, as config/agent/daemonset.yaml does, or set the values on the node"
	case denied:
		return "because it cannot be written in the agent's network namespace: run the agent in that of the host, as root, or set the values there"
	case lacking:
		return "because this kernel lacks it: use a newer kernel"
	case tooSmall:
		return "because the connections in the table would nearly fill the smaller one and new ones would fail: wait until there are fewer, or raise conntrack.maxPerCore or conntrack.min"
	default:
		return fmt.Sprintf("because writing it fails (%v): set the values on the node", err)
	}
}
