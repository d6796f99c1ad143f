package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

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

// ticksPerSecond is the unit of /proc/stat; Linux fixes it for programs.
const ticksPerSecond = 100

// machineCPU is the processor time that everything on this machine has taken so far.
func machineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseMachineCPU(string(text))
}

func parseMachineCPU(stat string) (time.Duration, error) {
	// user nice system idle iowait irq softirq
	var times [7]int64
	if _, err := fmt.Sscanf(stat, "cpu %d %d %d %d %d %d %d", &times[0], &times[1], &times[2], &times[3], &times[4], &times[5], &times[6]); err != nil {
		return 0, fmt.Errorf("cannot read processor times from /proc/stat: %w", err)
	}
	ticks := times[0] + times[1] + times[2] + times[5] + times[6]
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}
