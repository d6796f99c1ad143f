package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Change is a sysctl that was written.
type Change struct {
	// Sysctl is its name, with dots.
	Sysctl string
	// From and To are the values before and after.
	From, To int64
}

// Tuned is what Tune has found and done.
type Tuned struct {
	// Changes are the sysctls that were written.
	Changes []Change
	// Unmet says, human-readable, what is not as the settings ask, why, and what to
	// do.
	Unmet []string
	// Untracked: the kernel has no connection tracking, or not yet. Nothing else
	// is known then.
	Untracked bool
	// Liberal: TCP packets outside the window are not taken for invalid.
	Liberal bool
}

// Settings are the kernel's settings of connection tracking, in the network
// namespace that the methods are called in. The size of the table and of its
// hash table are the same in all, and can be written in the host's alone.
type Settings struct {
	sysctls string // the directory of net.netfilter
	online  string // the file that lists the CPUs in use
}

// NewSettings returns the settings of the running kernel, whose sysctls are in a
// directory. Empty: /proc/sys.
func NewSettings(sysctlFolder string) *Settings {
	return &Settings{sysctls: filepath.Join(cmp.Or(sysctlFolder, "/proc/sys"), "net/netfilter"), online: "/sys/devices/system/cpu/online"}
}

// Tune makes the kernel's settings those that complete settings ask for. It
// writes only what differs. What cannot be written stays as it is and keeps
// nothing else from being written.
func (k *Settings) Tune(s *v1alpha1.ConntrackSettings) Tuned {
	var out Tuned
	if _, err := k.read(sysctlMax); errors.Is(err, fs.ErrNotExist) {
		out.Untracked = true
		return out
	}
	var failed []unmet
	for _, w := range wishes(s, k.cores()) {
		if u := k.fulfil(w, &out); u != nil {
			failed = append(failed, *u)
		}
		if w.sysctl == sysctlMax {
			if u := k.widen(&out); u != nil {
				failed = append(failed, *u)
			}
		}
	}
	liberal, err := k.read(sysctlLiberal)
	out.Liberal = err == nil && liberal != 0
	out.Unmet = say(failed)
	return out
}

// fulfil writes a sysctl if it differs.
func (k *Settings) fulfil(w wish, out *Tuned) *unmet {
	has, err := k.read(w.sysctl)
	switch {
	case err != nil:
		return &unmet{wish: w, absent: true, cause: causeOf(err), err: err}
	case has == w.value:
		return nil
	case w.sysctl == sysctlMax && k.crowded(has, w.value):
		return &unmet{wish: w, has: has, cause: tooSmall}
	}
	return k.write(w, has, out)
}

// write writes a sysctl and looks what it is then: the kernel may make it more.
func (k *Settings) write(w wish, has int64, out *Tuned) *unmet {
	err := os.WriteFile(filepath.Join(k.sysctls, w.sysctl), []byte(strconv.FormatInt(w.value, 10)), 0)
	now, readErr := k.read(w.sysctl)
	if readErr != nil {
		now = has
	}
	if now != has {
		out.Changes = append(out.Changes, Change{Sysctl: "net.netfilter." + w.sysctl, From: has, To: now})
	}
	if err == nil && now != w.value && (w.sysctl != sysctlBuckets || now < w.value) {
		err = errors.New("the kernel does not take the value")
	}
	if err != nil {
		return &unmet{wish: w, has: now, cause: causeOf(err), err: err}
	}
	return nil
}

// crowded reports whether a table made smaller would be under pressure at once.
func (k *Settings) crowded(has, wanted int64) bool {
	entries, err := k.read(sysctlCount)
	return err == nil && (has == 0 || wanted < has) && Pressed(false, entries, wanted)
}

// widen raises the number of buckets if it is too small for the table: long
// chains of connections make every packet slow.
func (k *Settings) widen(out *Tuned) *unmet {
	size, err := k.read(sysctlMax)
	if err != nil {
		return nil // told already
	}
	w := wish{sysctlBuckets, size / perBucket, "maxPerCore", "0"}
	has, err := k.read(sysctlBuckets)
	switch {
	case err != nil:
		return &unmet{wish: w, absent: true, cause: causeOf(err), err: err}
	case has >= w.value:
		return nil
	}
	return k.write(w, has, out)
}

// read returns the value of a sysctl.
func (k *Settings) read(name string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(k.sysctls, name))
	if err != nil {
		return 0, fmt.Errorf("reading net.netfilter.%s: %w", name, err)
	}
	value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading net.netfilter.%s: %w", name, err)
	}
	return value, nil
}

// cores counts the CPUs in use; where that is not told, those that this process
// may use.
func (k *Settings) cores() int {
	text, err := os.ReadFile(k.online)
	if err != nil {
		return runtime.NumCPU()
	}
	count, err := countCPUs(strings.TrimSpace(string(text)))
	if err != nil {
		return runtime.NumCPU()
	}
	return count
}

// countCPUs counts a list such as 0-3,5.
func countCPUs(list string) (int, error) {
	count := 0
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			return 0, fmt.Errorf("reading the list of CPUs %q: %w", list, err)
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(high); err != nil {
				return 0, fmt.Errorf("reading the list of CPUs %q: %w", list, err)
			}
		}
		count += max(0, last-first+1)
	}
	return count, nil
}

func causeOf(err error) cause {
	switch {
	case errors.Is(err, syscall.EROFS):
		return readOnly
	case errors.Is(err, fs.ErrPermission):
		return notOurs
	case errors.Is(err, fs.ErrNotExist):
		return lacking
	default:
		return other
	}
}
