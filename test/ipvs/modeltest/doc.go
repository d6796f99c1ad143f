// Package modeltest compares package iptablesmodel with the kernel: it loads a rule set
// into a network namespace, sends packets through it, and returns what the kernel did with
// each of them.
//
//   - lab_linux.go, packet_linux.go: the kernel, and packets through it; ipvs_linux.go: what IPVS chose
//   - random.go, random_ipvs.go: rule sets
package modeltest
