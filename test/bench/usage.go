package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// usage is what a process has taken so far.
type usage struct {
	// cpu is processor time, with that of children that have ended, such as
	// iptables-restore.
	cpu time.Duration
	// resident is memory now and peak the most there was, in bytes, without
	// children.
	resident, peak uint64
}

// ticksPerSecond is the unit of /proc/PID/stat; Linux fixes it for programs.
const ticksPerSecond = 100

func readUsage(process *cluster.Process) (usage, error) {
	directory := fmt.Sprintf("/proc/%d/", process.PID())
	stat, err := os.ReadFile(directory + "stat")
	if err != nil {
		return usage{}, errors.New("it has ended; " + process.Tail())
	}
	status, err := os.ReadFile(directory + "status")
	if err != nil {
		return usage{}, err
	}
	return parseUsage(string(stat), string(status))
}

// kernelMemory is what the kernel has for itself on this machine, in bytes: unreclaimable slabs,
// vmalloc and memory for each processor. Rules are in these, and rules are most of what a proxy
// adds to them.
func kernelMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return parseKernelMemory(string(text))
}

func parseKernelMemory(meminfo string) (int64, error) {
	var total int64
	found := 0
	for line := range strings.Lines(meminfo) {
		name, rest, _ := strings.Cut(line, ":")
		if name != "SUnreclaim" && name != "VmallocUsed" && name != "Percpu" {
			continue
		}
		var kib int64
		if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
			return 0, fmt.Errorf("reading %q in /proc/meminfo: %w", line, err)
		}
		total += kib << 10
		found++
	}
	if found < 3 {
		return 0, errors.New("SUnreclaim, VmallocUsed or Percpu is missing in /proc/meminfo")
	}
	return total, nil
}

func parseUsage(stat, status string) (usage, error) {
	var out usage
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
		out.cpu += time.Duration(ticks) * time.Second / ticksPerSecond
	}
	for line := range strings.Lines(status) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			out.resident = kib << 10
		} else if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			out.peak = kib << 10
		}
	}
	if out.resident == 0 {
		return out, errors.New("no VmRSS in /proc/PID/status")
	}
	return out, nil
}
