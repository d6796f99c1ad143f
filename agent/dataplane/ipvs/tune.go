package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// sysctl is one that the mode needs.
type sysctl struct{ name, value, why string }

// sysctls are those that a node needs, by the release of its kernel.
func (c *config) sysctls(release string) []sysctl {
	out := []sysctl{
		{"net/ipv4/vs/conntrack", "1", "connections are not masqueraded"},
		{"net/ipv4/vs/expire_nodest_conn", "1", "connections to endpoints that are gone hang"},
		{"net/ipv4/vs/expire_quiescent_template", "1", "clients with session affinity keep endpoints that are going"},
		{"net/ipv4/ip_forward", "1", "packets are not forwarded to pods"},
	}
	if reuses(release) {
		out = append(out, sysctl{"net/ipv4/vs/conn_reuse_mode", "0", "new connections from a port that was just used wait for a second"})
	}
	if c.strictARP {
		const why = "the node answers ARP for addresses of Services"
		out = append(out, sysctl{"net/ipv4/conf/all/arp_ignore", "1", why}, sysctl{"net/ipv4/conf/all/arp_announce", "2", why})
	}
	return out
}

// reuses reports whether a kernel has conn_reuse_mode, and delays connections by
// it: from 4.1 until 5.9.
func reuses(release string) bool {
	var major, minor int
	numbers := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(numbers) < 2 {
		return false
	}
	major, _ = strconv.Atoi(numbers[0]) // digits alone
	minor, _ = strconv.Atoi(numbers[1])
	return (major == 4 && minor >= 1) || (major == 5 && minor < 9)
}

// timeoutsOf is the name under which untunable has the timeouts.
const timeoutsOf = "timeouts"

// tune sets sysctls and timeouts. It returns, human-readable, what could not be set.
func (d *Dataplane) tune(c *config) []string {
	var warnings []string
	d.untunable = map[string]struct{}{}
	for _, s := range c.sysctls(d.release()) {
		err := d.kernel.SetSysctl(s.name, s.value)
		if err == nil {
			continue
		}
		d.untunable[s.name] = struct{}{}
		what := "let the agent write it (in a container by --sysctl-folder, as config/agent/daemonset.yaml does)"
		if errors.Is(err, fs.ErrNotExist) {
			what = "use a kernel that has it"
		}
		warnings = append(warnings, fmt.Sprintf("the sysctl %s could not be set to %s, so %s: %v; %s, or set it by hand", dotted(s.name), s.value, s.why, err, what))
	}
	if want := c.timeouts; want != (Timeouts{}) {
		if err := d.setTimeouts(want); err != nil {
			d.untunable[timeoutsOf] = struct{}{}
			warnings = append(warnings, fmt.Sprintf("the timeouts of IPVS could not be set: %v; see spec.settings.ipvs", err))
		}
	}
	return warnings
}

// untuned are the sysctls and timeouts that are not as they should be. What could not
// be set, or cannot be read, is none: tune warns of it.
func (d *Dataplane) untuned(c *config) []dataplane.Finding {
	var out []dataplane.Finding
	for _, s := range c.sysctls(d.release()) {
		have, err := d.kernel.Sysctl(s.name)
		if _, failed := d.untunable[s.name]; failed || err != nil || have == s.value {
			continue
		}
		out = append(out, dataplane.Finding{
			Key:  "sysctl " + s.name,
			Text: fmt.Sprintf("the sysctl %s is %s, and has to be %s: else %s", dotted(s.name), have, s.value, s.why),
		})
	}
	have, err := d.kernel.Timeouts()
	if _, failed := d.untunable[timeoutsOf]; !failed && err == nil && !c.timeouts.keptBy(have) {
		out = append(out, dataplane.Finding{
			Key:  timeoutsOf,
			Text: fmt.Sprintf("the timeouts of IPVS (TCP, TCP after FIN, UDP, in seconds) are %s, and have to be %s; 0 is any", have, c.timeouts),
		})
	}
	return out
}

// release is that of the kernel; empty where it cannot be told, since what depends on
// it is an improvement only.
func (d *Dataplane) release() string {
	release, err := d.kernel.Sysctl("kernel/osrelease")
	if err != nil {
		return ""
	}
	return release
}

func (t Timeouts) String() string { return fmt.Sprintf("%d %d %d", t.TCP, t.TCPFin, t.UDP) }

// keptBy reports whether the kernel's are these, but for those that are 0.
func (t Timeouts) keptBy(have Timeouts) bool {
	same := func(want, have uint32) bool { return want == 0 || want == have }
	return same(t.TCP, have.TCP) && same(t.TCPFin, have.TCPFin) && same(t.UDP, have.UDP)
}

// setTimeouts sets those that are not 0, if they differ.
func (d *Dataplane) setTimeouts(want Timeouts) error {
	have, err := d.kernel.Timeouts()
	if err != nil || want.keptBy(have) {
		return err
	}
	return d.kernel.SetTimeouts(want)
}

// dotted is the name of a sysctl as people write it.
func dotted(name string) string { return strings.ReplaceAll(name, "/", ".") }
