package cluster

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has taken so far.
type Usage struct {
	// CPU is processor time, with that of children that have ended, such as
	// iptables-restore.
	CPU time.Duration
	// Resident is memory now and Peak the most there was, in bytes, without
	// children.
	Resident, Peak uint64
}

// ticksPerSecond is the unit of /proc/PID/stat; Linux fixes it for programs.
const ticksPerSecond = 100

// Usage returns what the process has taken so far. An error means that it has ended.
func (p *Process) Usage() (Usage, error) {
	directory := fmt.Sprintf("/proc/%d/", p.PID())
	stat, err := os.ReadFile(directory + "stat")
	if err != nil {
		return Usage{}, errors.New("it has ended; " + p.Tail())
	}
	status, err := os.ReadFile(directory + "status")
	if err != nil {
		return Usage{}, err
	}
	return parseUsage(string(stat), string(status))
}

func parseUsage(stat, status string) (Usage, error) {
	var out Usage
	// The name of the program, in brackets, may hold anything.
	_, rest, found := strings.Cut(stat[max(0, strings.LastIndexByte(stat, ')')):], ") ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 15 {
		return out, fmt.Errorf("cannot read processor times from %q", stat)
	}
	for _, field := range fields[11:15] { // utime stime cutime cstime
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return out, err
		}
		out.CPU += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	for line := range strings.Lines(status) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			out.Resident = kib << 10
		} else if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			out.Peak = kib << 10
		}
	}
	if out.Resident == 0 {
		return out, errors.New("no VmRSS in /proc/PID/status")
	}
	return out, nil
}
