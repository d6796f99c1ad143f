package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/utils/cpuset"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Change is a sysctl that was written.
type Change struct {
	// Sysctl is its name, with dots.
	Sysctl string
	// From and To are the values before and after.
	From, To int64
}

// Tuned is the result of Tune.
type Tuned struct {
	// Changes are the sysctls that were written.
	Changes []Change
	// Unmet reports, human-readable, what differs from the settings, why, and what to do.
	Unmet []string
	// Untracked: the kernel has no connection tracking, or not yet. Nothing else is known then.
	Untracked bool
	// Liberal: TCP packets outside the window are not INVALID.
	Liberal bool
}

// System is the connection tracking of the calling thread's network namespace. The size of the
// table and of its hash table are the same in all namespaces, and only writable in the host's.
type System struct {
	sysctls  dataplane.Sysctls
	online   string // the file that lists the online CPUs
	counters func() (Counters, error)
}

// NewSystem returns the connection tracking of the running kernel, whose sysctls are in a
// directory. Empty: /proc/sys.
func NewSystem(sysctls string) *System {
	return &System{
		sysctls: dataplane.Sysctls(cmp.Or(sysctls, "/proc/sys")),
		online:  "/sys/devices/system/cpu/online", counters: readCounters,
	}
}

// Tune applies complete settings. It writes only what differs. What cannot be written stays as it
// is and blocks nothing else.
func (k *System) Tune(s *v1alpha1.ConntrackSettings) Tuned {
	var out Tuned
	if _, err := k.read(sysctlMax); errors.Is(err, fs.ErrNotExist) {
		out.Untracked = true
		return out
	}
	var failed []unmet
	apply := func(d sysctl) {
		if u := k.apply(d, &out); u != nil {
			failed = append(failed, *u)
		}
	}
	for _, d := range desiredSysctls(s, k.cores()) {
		apply(d)
		if d.name != sysctlMax {
			continue
		}
		if size, err := k.read(sysctlMax); err == nil { // else reported already
			apply(sysctl{sysctlBuckets, size / perBucket, "maxPerCore", "0"})
		}
	}
	liberal, err := k.read(sysctlLiberal)
	out.Liberal = err == nil && liberal != 0
	out.Unmet = describe(failed)
	return out
}

// apply writes a sysctl if it differs, and reads it again: the kernel may make it more. The number
// of buckets is only raised: long chains of connections make every packet slow.
func (k *System) apply(d sysctl, out *Tuned) *unmet {
	enough := func(value int64) bool {
		return value == d.value || d.name == sysctlBuckets && value > d.value
	}
	has, err := k.read(d.name)
	switch {
	case err != nil:
		return &unmet{sysctl: d, absent: true, cause: causeOf(err), err: err}
	case enough(has):
		return nil
	case d.name == sysctlMax && k.crowded(has, d.value):
		return &unmet{sysctl: d, has: has, cause: tooSmall}
	}
	err = k.sysctls.Write("net/netfilter/"+d.name, strconv.FormatInt(d.value, 10))
	now, readErr := k.read(d.name)
	if readErr != nil {
		now = has
	}
	if now != has {
		out.Changes = append(out.Changes, Change{Sysctl: "net.netfilter." + d.name, From: has, To: now})
	}
	if err == nil && !enough(now) {
		err = errors.New("the kernel does not take the value")
	}
	if err != nil {
		return &unmet{sysctl: d, has: now, cause: causeOf(err), err: err}
	}
	return nil
}

// crowded reports whether a table would be under pressure at once if it shrank to size.
func (k *System) crowded(has, size int64) bool {
	entries, err := k.read(sysctlCount)
	return err == nil && (has == 0 || size < has) && Pressed(false, entries, size)
}

// read returns the value of a sysctl.
func (k *System) read(name string) (int64, error) {
	text, err := k.sysctls.Read("net/netfilter/" + name)
	var value int64
	if err == nil {
		value, err = strconv.ParseInt(text, 10, 64)
	}
	if err != nil {
		return 0, fmt.Errorf("reading net.netfilter.%s: %w", name, err)
	}
	return value, nil
}

// cores counts the online CPUs; if they are unknown, those that this process may use.
func (k *System) cores() int {
	text, err := os.ReadFile(k.online)
	if err != nil {
		return runtime.NumCPU()
	}
	cpus, err := cpuset.Parse(strings.TrimSpace(string(text)))
	if err != nil || cpus.IsEmpty() {
		return runtime.NumCPU()
	}
	return cpus.Size()
}

func causeOf(err error) cause {
	switch {
	case errors.Is(err, syscall.EROFS):
		return readOnly
	case errors.Is(err, fs.ErrPermission):
		return denied
	case errors.Is(err, fs.ErrNotExist):
		return lacking
	default:
		return otherwise
	}
}
