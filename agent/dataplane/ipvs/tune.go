package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// sysctl is one that the mode needs, and why.
type sysctl struct{ name, value, why string }

// sysctls returns those that a node needs, given the release of its kernel.
func (c *config) sysctls(release string) []sysctl {
	out := []sysctl{
		{"net/ipv4/vs/conntrack", "1", "connections are not masqueraded"},
		{"net/ipv4/vs/expire_nodest_conn", "1", "connections to deleted endpoints hang"},
		{"net/ipv4/vs/expire_quiescent_template", "1", "clients with session affinity keep terminating endpoints"},
		{"net/ipv4/ip_forward", "1", "packets are not forwarded to pods"},
	}
	if reuses(release) {
		out = append(out, sysctl{"net/ipv4/vs/conn_reuse_mode", "0", "new connections from a recently used port wait for a second"})
	}
	if c.strictARP {
		const why = "the node answers ARP for addresses of Services"
		out = append(out, sysctl{"net/ipv4/conf/all/arp_ignore", "1", why}, sysctl{"net/ipv4/conf/all/arp_announce", "2", why})
	}
	return out
}

// reuses reports whether a kernel delays connections by conn_reuse_mode: from 4.1 until 5.9.
func reuses(release string) bool {
	numbers := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(numbers) < 2 {
		return false
	}
	major, _ := strconv.Atoi(numbers[0]) // digits alone
	minor, _ := strconv.Atoi(numbers[1])
	return (major == 4 && minor >= 1) || (major == 5 && minor < 9)
}

// timeoutsOf is the name of the timeouts in untunable.
const timeoutsOf = "timeouts"

// tune sets sysctls and timeouts. It returns human-readable warnings.
func (d *Dataplane) tune(c *config) []string {
	var warnings []string
	d.untunable = sets.Set[string]{}
	for _, s := range c.sysctls(d.release()) {
		err := d.kernel.SetSysctl(s.name, s.value)
		if err == nil {
			continue
		}
		d.untunable[s.name] = struct{}{}
		what := "let the agent write it (in a container by --sysctl-directory, as config/agent/daemonset.yaml does)"
		if errors.Is(err, fs.ErrNotExist) {
			what = "use a kernel that has it"
		}
		warnings = append(warnings, fmt.Sprintf("the sysctl %s could not be set to %s, so %s: %v; %s, or set it by hand", dotted(s.name), s.value, s.why, err, what))
	}
	if err := d.setTimeouts(c.timeouts); err != nil {
		d.untunable[timeoutsOf] = struct{}{}
		warnings = append(warnings, fmt.Sprintf("the timeouts of IPVS could not be set: %v; see spec.settings.ipvs", err))
	}
	return warnings
}

// untuned returns the sysctls and timeouts that differ, except those that could not be set,
// of which tune warns, or cannot be read.
func (d *Dataplane) untuned(c *config) []dataplane.Finding {
	var out []dataplane.Finding
	for _, s := range c.sysctls(d.release()) {
		have, err := d.kernel.Sysctl(s.name)
		if d.untunable.Has(s.name) || err != nil || have == s.value {
			continue
		}
		out = append(out, dataplane.Finding{
			Key:  "sysctl " + s.name,
			Text: fmt.Sprintf("the sysctl %s is %s, not %s, so %s", dotted(s.name), have, s.value, s.why),
		})
	}
	have, err := d.kernel.Timeouts()
	if !d.untunable.Has(timeoutsOf) && err == nil && !c.timeouts.match(have) {
		out = append(out, dataplane.Finding{
			Key:  timeoutsOf,
			Text: fmt.Sprintf("the timeouts of IPVS (TCP, TCP after FIN, UDP, in seconds) are %s, not %s; 0 is any", have, c.timeouts),
		})
	}
	return out
}

// release returns that of the kernel; empty if it is unknown, since only an improvement
// depends on it.
func (d *Dataplane) release() string {
	release, err := d.kernel.Sysctl("kernel/osrelease")
	if err != nil {
		return ""
	}
	return release
}

func (t Timeouts) String() string { return fmt.Sprintf("%d %d %d", t.TCP, t.TCPFin, t.UDP) }

// match reports whether the kernel has these timeouts; 0 matches any.
func (t Timeouts) match(have Timeouts) bool {
	return have == Timeouts{cmp.Or(t.TCP, have.TCP), cmp.Or(t.TCPFin, have.TCPFin), cmp.Or(t.UDP, have.UDP)}
}

// setTimeouts sets those that are not 0, if they differ.
func (d *Dataplane) setTimeouts(want Timeouts) error {
	if want == (Timeouts{}) {
		return nil
	}
	have, err := d.kernel.Timeouts()
	if err != nil || want.match(have) {
		return err
	}
	return d.kernel.SetTimeouts(want)
}

// dotted returns the usual name of a sysctl.
func dotted(name string) string { return strings.ReplaceAll(name, "/", ".") }
